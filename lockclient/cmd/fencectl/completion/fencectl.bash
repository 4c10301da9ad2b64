# Completion of fencectl for bash: source <(fencectl completion bash)
# Needs no other package, and runs nothing that stands on the command line.
_fencectl() {
	local current="${COMP_WORDS[COMP_CWORD]}" line
	local -a words=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
	[[ $current == -* ]] && words+=("$current")
	COMPREPLY=()
	while IFS= read -r line; do
		line=${line%%:*}
		[[ -n $line && $line == "$current"* ]] && COMPREPLY+=("$line")
	done < <(fencectl "${words[@]}" --generate-shell-completion 2>/dev/null)
}
complete -F _fencectl fencectl
