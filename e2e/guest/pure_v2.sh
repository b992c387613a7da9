# The script of tests/pure_v2.rs: the same life of sandboxes as three identities, on a machine that has cgroup v2 only.
exec </dev/null >/dev/ttyS1 2>&1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
osb=/payload/osb
tree=/sys/fs/cgroup
# Longest wait for a server or an end, in fifths of a second; emulation is slow.
patience=300

# step NAME COMMAND...: runs it and tells its output and status.
step() {
  local name=$1
  shift
  "$@"
  printf '\n@ %s %s\n' "$name" $?
}

# Becomes the command as the identity of this life. What `delegated` does is what systemd does with Delegate=yes.
become() {
  case $who in
    root) exec "$@" ;;
    delegated) echo $BASHPID > $tree/delegated/cgroup.procs ;;
  esac
  HOME=/home/user exec setpriv --reuid user --regid user --init-groups "$@"
}
as() { (become "$@"); }
# The command line of the same user, from outside of the delegated group.
client() { if [ $who = root ]; then $osb "$@"; else HOME=/home/user setpriv --reuid user --regid user --init-groups $osb "$@"; fi; }

answers() { for _ in $(seq $patience); do client sandbox list > /tmp/answer 2>&1 && return; sleep 0.2; done; cat /tmp/answer; return 1; }
created() { client sandbox create -o json "$@" > /tmp/created 2>&1; local status=$?; cat /tmp/created; id=$(sed -n 's/^ *"id": "\(.*\)",*$/\1/p' /tmp/created | head -1); return $status; }
ended() { for _ in $(seq $patience); do client sandbox get "$id" -o json > /tmp/got 2>&1; grep -q '"state": "\(Failed\|Terminated\)"' /tmp/got && break; sleep 0.2; done; cat /tmp/got; }
cgroups() { find $tree -mindepth 1 -type d; }

life() {
  who=$1
  step $who.doctor as $osb doctor
  step $who.run as $osb run -- true
  step $who.run-hog as $osb run --memory 64Mi -- perl -e '$x = q(x) x 300000000'
  step $who.run-left cgroups
  (become $osb server --port 7777) > /tmp/server.log 2>&1 &
  local server=$!
  step $who.server answers
  step $who.create created --memory 128Mi --cpu 1 --resource pids=64
  step $who.get client sandbox get "$id" -o json
  step $who.view client command run "$id" -- sh -c 'cd /sys/fs/cgroup; cat memory.max cpu.max pids.max cgroup.procs'
  step $who.pids client command run "$id" -- sh -c 'for _ in $(seq 100); do sleep 2 & done; wait'
  step $who.pause client sandbox pause "$id"
  step $who.paused client sandbox get "$id" -o json
  step $who.resume client sandbox resume "$id"
  step $who.resumed client command run "$id" -- echo awake
  step $who.kill client sandbox kill "$id"
  step $who.create-half created --cpu 0.5
  step $who.kill-half client sandbox kill "$id"
  step $who.create-hog created --no-wait --memory 64Mi --entrypoint perl --entrypoint -e --entrypoint 'sleep 2; $x = q(x) x 300000000'
  step $who.hog ended
  step $who.kill-hog client sandbox kill "$id"
  [ $who = root ] && step root.disk as $osb run --disk 16Mi -- dd if=/dev/zero of=/root/fill bs=1M count=32
  step $who.groups cgroups
  kill $server
  wait $server
  step $who.stop cat /tmp/server.log
  step $who.left cgroups
}

useradd --create-home user
life root
life user
mkdir $tree/delegated
chown user $tree/delegated $tree/delegated/cgroup.procs $tree/delegated/cgroup.subtree_control $tree/delegated/cgroup.threads
life delegated
step delegated.controllers cat $tree/delegated/cgroup.subtree_control
# A group that holds another program too is not ours to rearrange.
who=delegated
step shared.doctor as bash -c "$osb doctor; true"
step end true
echo o > /proc/sysrq-trigger
sleep 60
