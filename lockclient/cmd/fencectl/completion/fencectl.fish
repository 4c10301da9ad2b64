# Completion of fencectl for fish: fencectl completion fish | source
function __fencectl_complete
    set -l given (commandline -opc)
    set -l current (commandline -ct)
    if string match -q -- '-*' $current
        set -a given $current
    end
    for line in (fencectl $given[2..-1] --generate-shell-completion 2>/dev/null)
        test -n "$line"; and string replace -- : \t $line
    end
end
complete -c fencectl -e
complete -c fencectl -f -a '(__fencectl_complete)'
