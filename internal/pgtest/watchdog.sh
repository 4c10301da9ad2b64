# The watchdog of one private PostgreSQL server, and its helpers.
#
#   watch NAME ROOT...   makes the directory NAME in the first root that will do,
#                        prints its path, and takes everything in it down at the
#                        end of its input. The Go process alone holds the other
#                        end of that pipe, so its end, however it comes, is an
#                        end of file here.
#   crash DIR NAME PID   kills all processes of the server as one blow; PID is the
#                        postmaster, 0 if it is gone.
#   shut SIGNAL PID      sends the postmaster a signal.

# procs prints the processes of the server. On Linux that is whatever works
# inside the directory, which needs no ps and also finds the backends of a
# postmaster that is gone; elsewhere the command lines tell, since cluster_name
# is in the title of every server process.
procs() {
	if [ -L /proc/self/cwd ]; then
		ls -ld /proc/[0-9]*/cwd 2>/dev/null | while IFS= read -r line; do
			case $line in
			*" -> $dir" | *" -> $dir/"* | *" -> $dir (deleted)")
				pid=${line#*/proc/}
				echo "${pid%%/*}"
				;;
			esac
		done
	else
		ps -A -ww -o pid= -o args= 2>/dev/null | while read -r pid args; do
			case $args in
			"postgres: $name"* | *" -D $dir/data"*) echo "$pid" ;;
			esac
		done
	fi
}

# roomy refuses a memory file system that is too small, as most containers have
# it, or too full.
roomy() {
	[ "$1" = /dev/shm ] || return 0
	free=$(df -Pk "$1" 2>/dev/null | sed -n '2s/^[^ ]* *[^ ]* *[^ ]* *\([0-9]*\).*/\1/p')
	[ "${free:-0}" -ge 1048576 ]
}

# make tries to make the directory in a root. The limit keeps the path of the
# Unix socket under the 104 bytes that BSD and macOS allow, and the characters
# refused are those that unix_socket_directories gives a meaning.
make() {
	[ -d "$1" ] && [ -w "$1" ] && roomy "$1" && mkdir "$1/$name" 2>/dev/null || return 1
	dir=$(cd "$1/$name" 2>/dev/null && pwd -P)
	case $dir in
	*[\'\",\\]* | "") ;;
	*) [ "${#dir}" -gt 87 ] || return 0 ;;
	esac
	rmdir "$1/$name"
	return 1
}

# crash freezes the postmaster first: it can then neither fork another backend
# nor start crash recovery between the moment of the list and the kill.
crash() {
	for pid in $(procs); do
		[ "$pid" != "$1" ] || kill -STOP "$pid" 2>/dev/null
	done
	n=0
	while victims=$(procs) && [ -n "$victims" ]; do
		kill -KILL $victims 2>/dev/null
		n=$((n + 1))
		[ "$n" -le 500 ] || return 1
	done
}

# finish stops whatever runs and deletes the directory, and looks again for a
# process that was about to start when its parent ended. It first asks for an
# immediate shutdown, because only that removes the postmaster's System V shared
# memory segment; who does not follow is killed.
finish() {
	trap '' HUP INT TERM
	for pass in 1 2; do
		n=0
		while alive=$(procs) && [ -n "$alive" ] && [ "$n" -lt 500 ]; do
			if [ "$n" -eq 0 ]; then
				kill -QUIT $alive 2>/dev/null
				kill -CONT $alive 2>/dev/null
			elif [ "$n" -ge 40 ]; then
				kill -KILL $alive 2>/dev/null
			fi
			n=$((n + 1))
			sleep 0.02
		done
		forget
		n=0
		while ! rm -rf "$dir" 2>/dev/null && [ "$n" -lt 50 ]; do
			n=$((n + 1))
			sleep 0.02
		done
	done
	exit 0
}

# forget removes the shared memory segment of a postmaster that was killed; the
# seventh line of its pid file names it. A clean end removes the file.
forget() {
	[ -f "$dir/data/postmaster.pid" ] || return
	segment=$(sed -n 7p "$dir/data/postmaster.pid")
	segment=${segment##* }
	[ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
}

command=$1
shift
case $command in
watch)
	name=$1
	shift
	# A report after the death of the Go process must not end the watchdog.
	trap '' PIPE
	trap 'finish' HUP INT TERM
	umask 077
	for root; do
		make "$root" || continue
		echo "$dir"
		read -r _
		finish
	done
	echo "no usable directory among: $*" >&2
	exit 1
	;;
crash)
	dir=$1 name=$2
	crash "$3"
	;;
shut)
	# A postmaster that a test has stopped shuts down only when it runs again.
	kill "-$1" "$2" && kill -CONT "$2"
	;;
esac
