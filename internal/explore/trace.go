package explore

// trace walks the parents back from a state and then replays the steps from
// the start without canonicalization, so that a worker keeps its name.
// Soundness of canon means that each canonical step has a concrete one, so a
// failure here is an error in the model.
func trace[S comparable](m model[S], canon func(*S), seen *visited[S], last int) []Step {
	var path []int
	for i := last; i != 0; i = int(seen.parents[i]) {
		path = append(path, i)
	}
	at := m.start
	steps := []Step{{State: m.show(&at)}}
	for k := len(path) - 1; k >= 0; k-- {
		want, found := seen.states[path[k]], false
		var after S
		var step Step
		m.next(at, func(actor, what string, s S) {
			c := s
			if canon(&c); !found && c == want {
				found, after, step = true, s, Step{Actor: actor, What: what}
			}
		})
		if !found {
			panic("explore: model " + m.name + ": the canonical form is not sound, a step cannot be replayed")
		}
		at, step.State = after, m.show(&after)
		steps = append(steps, step)
	}
	return steps
}
