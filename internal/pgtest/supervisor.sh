# The supervisor owns one private PostgreSQL server: it makes the directory,
# runs initdb and postgres, and takes everything down again. It reads commands
# from a pipe whose write end only the Go process holds, so the end of that
# process, however it comes, is an end of file here.
#
# Arguments: directory name, directory of the server binaries, then the roots
# in which to try to make the directory. Commands on standard input: the
# password's verifier, configuration lines up to an empty line, then start, crash, signal.
# Reports go to standard output, one line each.

name=$1 bin=$2
shift 2

dir= runner=

# A report after the death of the Go process must not end the supervisor.
trap '' PIPE
trap finish HUP INT TERM
umask 077

# procs prints the processes of this server. On Linux that is whatever works
# inside the directory, which needs no ps and also finds archive commands and
# the backends of a postmaster that is gone; elsewhere the command lines tell,
# since cluster_name is in the title of every server process.
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
			"postgres: $name"* | "$bin/postgres "*"$dir/data"* | "$bin/initdb "*"$dir/data"*)
				echo "$pid"
				;;
			esac
		done
	fi
}

# others prints procs without the process given.
others() {
	for pid in $(procs); do
		[ "$pid" = "$1" ] || echo "$pid"
	done
}

# postmaster prints the process of the postmaster if it runs. The check against
# procs is for a process number that has passed to somebody else.
postmaster() {
	[ -s "$dir/postmaster" ] && read -r recorded <"$dir/postmaster" || return
	for pid in $(procs); do
		[ "$pid" != "$recorded" ] || echo "$pid"
	done
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
	fits=yes
	dir=$(cd "$1/$name" 2>/dev/null && pwd -P)
	[ "${#dir}" -le 87 ] || fits=no
	case $dir in
	*[\'\",\\]* | "") fits=no ;;
	esac
	if [ "$fits" = no ]; then
		rmdir "$1/$name"
		dir=
		return 1
	fi
}

# init runs initdb in the background, so that an end of file is seen at once.
# initdb of PostgreSQL 13 cuts the password's verifier after 99 bytes and takes
# the rest for a password, so there it is set again.
init() {
	(
		cd "$dir" || exit
		"$bin/initdb" -D "$dir/data" -U postgres -A scram-sha-256 --pwfile=password \
			-E UTF8 --no-locale --no-sync >initdb.log 2>&1 </dev/null &&
			{ [ "$(cat data/PG_VERSION)" -ge 14 ] || printf "ALTER USER postgres PASSWORD '%s'\n" "$(cat password)" |
				"$bin/postgres" --single -F -D "$dir/data" postgres >>initdb.log 2>&1; } &&
			cat server.conf >>data/postgresql.conf &&
			cat >data/pg_hba.conf <<-'END'
				local all all scram-sha-256
				local replication all scram-sha-256
				host all all 127.0.0.1/32 scram-sha-256
				host replication all 127.0.0.1/32 scram-sha-256
			END
		rc=$?
		rm -f password
		echo "initdb $rc"
	) &
}

# start runs postgres under a subshell which reaps it and reports its end: this
# shell is blocked reading commands, and would leave a zombie that looks alive.
start() {
	rm -f "$dir/postmaster"
	(
		cd "$dir" || exit
		"$bin/postgres" -D "$dir/data" -p "$1" >>server.log 2>&1 </dev/null &
		echo "$!" >postmaster
		echo "pid $!"
		wait "$!"
		echo "exited $?"
	) &
	runner=$!
}

# crash kills every process of the server as one blow. The postmaster is frozen
# first: it can then neither fork another backend nor start crash recovery
# between the moment of the list and the kill.
crash() {
	frozen=$(postmaster)
	[ -z "$frozen" ] || kill -STOP "$frozen" 2>/dev/null
	n=0
	while victims=$(others "$runner") && [ -n "$victims" ]; do
		kill -KILL $victims 2>/dev/null
		n=$((n + 1))
		if [ "$n" -gt 500 ]; then
			echo "crashed 1"
			return
		fi
	done
	echo "crashed 0"
}

# shut asks the postmaster to shut down; one that a test has stopped can only
# do so when it runs again.
shut() {
	for pid in $(postmaster); do
		kill -"$1" "$pid" 2>/dev/null
		kill -CONT "$pid" 2>/dev/null
	done
}

# finish stops whatever runs and deletes the directory. It asks the postmaster
# for an immediate shutdown first, because only that removes its System V
# shared memory segment; who does not follow is killed.
finish() {
	trap '' HUP INT TERM
	if [ -n "$dir" ]; then
		n=0
		while [ -n "$runner" ] && kill -0 "$runner" 2>/dev/null &&
			[ ! -s "$dir/postmaster" ] && [ "$n" -lt 50 ]; do
			n=$((n + 1))
			sleep 0.01
		done
		first=$(postmaster)
		n=0
		while alive=$(procs) && [ -n "$alive" ] && [ "$n" -lt 500 ]; do
			if [ "$n" -eq 0 ]; then
				shut QUIT
			elif [ "$n" -eq 40 ]; then
				kill -KILL $(others "$first") 2>/dev/null
			elif [ "$n" -ge 80 ]; then
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
	fi
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

for root; do
	make "$root" && break
done
if [ -z "$dir" ]; then
	echo "error no usable directory among: $*"
	exit 1
fi
if [ ! -x "$bin/postgres" ] || [ ! -x "$bin/initdb" ]; then
	echo "error $(id -un) cannot execute $bin/postgres"
	finish
fi
echo "dir $dir"

IFS= read -r password || finish
printf '%s\n' "$password" >"$dir/password"
while IFS= read -r line || finish; do
	[ -n "$line" ] || break
	printf '%s\n' "$line"
done >"$dir/server.conf"
printf 'unix_socket_directories = '"'%s'\n" "$dir" >>"$dir/server.conf"
init

while read -r command argument; do
	case $command in
	start) start "$argument" ;;
	crash) crash ;;
	signal) shut "$argument" ;;
	esac
done
finish
