#compdef fencectl
# Completion of fencectl for zsh: source <(fencectl completion zsh), or as a file
# named _fencectl in a directory of fpath.
_fencectl() {
	local -a given offers
	given=("${(@)words[2,CURRENT-1]}")
	[[ $words[CURRENT] == -* ]] && given+=("$words[CURRENT]")
	offers=("${(@f)$(fencectl "${given[@]}" --generate-shell-completion 2>/dev/null)}")
	[[ -n "$offers[1]" ]] && _describe fencectl offers
}
if [[ "$funcstack[1]" == _fencectl ]]; then
	_fencectl
else
	compdef _fencectl fencectl
fi
