# Linux's host and nvme-cli against our target, over the guest's loopback. Sourced by the guest's init.
for module in nvme_tcp nvme_auth dh_generic hmac sha256 sha512; do modprobe $module 2>/dev/null; done
U=11111111-2222-3333-4444-555555555555
H=nqn.2014-08.org.nvmexpress:uuid:$U
KEY=DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:
mkdir -p /etc/nvme
echo "$H" >/etc/nvme/hostnqn
echo "$U" >/etc/nvme/hostid
said() { echo "case: $1: ${2:-ok}"; }
# Starts a target on port $1 with the other arguments, and waits until it listens.
serve() {
    port=$1
    shift
    straightway -v target --listen "127.0.0.1:$port" "$@" >"/tmp/target.$port.out" 2>"/tmp/target.$port.err" &
    echo $! >"/tmp/target.$port.pid"
    for _ in $(seq 300); do
        grep -q '^serving' "/tmp/target.$port.err" && return 0
        sleep 0.1
    done
    echo "guest: no target on $port: $(cat "/tmp/target.$port.err")"
}
stop() { kill "$(cat "/tmp/target.$1.pid")" 2>/dev/null; }
# The device of namespace $1 of subsystem $2, once it is there.
device() {
    for _ in $(seq 100); do
        for b in /sys/block/nvme*n*; do
            [ "$(cat "$b/device/subsysnqn" 2>/dev/null)" = "$2" ] || continue
            [ "$(cat "$b/nsid" 2>/dev/null)" = "$1" ] && [ -b "/dev/${b##*/}" ] && echo "/dev/${b##*/}" && return
        done
        sleep 0.1
    done
    echo /dev/none
}
# A busy machine gives the guest little time: keep-alives are long unless a case is about them.
connect() { port=$1 nqn=$2; shift 2; nvme connect -t tcp -a 127.0.0.1 -s "$port" -n "$nqn" -i 2 --keep-alive-tmo=30 "$@"; }
quit() { nvme disconnect -n "$1" >/dev/null; }
size() { cat "/sys/block/${1##*/}/size"; }

mkdir -p /tmp/model/sub
dd if=/dev/urandom of=/tmp/model/a bs=1M count=6 2>/dev/null
dd if=/dev/urandom of=/tmp/model/b bs=1000 count=777 2>/dev/null
dd if=/dev/urandom of=/tmp/model/sub/c bs=4096 count=33 2>/dev/null
serve 4420 /tmp/model --nqn nqn.t --rescan 0.5s
echo "guest: target up at $(cut -d' ' -f1 /proc/uptime)"
found=$(nvme discover -t tcp -a 127.0.0.1 -s 4420 2>&1)
if echo "$found" | grep -q 'subnqn: *nqn.t'; then said discover; else said discover "$found"; fi

# Every namespace equals its file; bytes after the file's end are zeros.
same() { # NSID FILE
    d=$(device "$1" nqn.t)
    n=$(stat -c %s "$2")
    dd if="$d" bs=1M iflag=direct 2>/tmp/dd.err >/tmp/got || { cat /tmp/dd.err; return 1; }
    head -c "$n" /tmp/got | cmp - "$2" || return 1
    [ "$(tail -c +$((n + 1)) /tmp/got | tr -d '\0' | wc -c)" = 0 ]
}
reads() { # NAME OPTIONS...
    name=$1
    shift
    out=$(connect 4420 nqn.t "$@" 2>&1) || { said "$name" "connect: $out $(dmesg | tail -3)"; return; }
    if why=$(same 1 /tmp/model/a && same 2 /tmp/model/b && same 3 /tmp/model/sub/c); then said "$name"; else
        said "$name" "differs: $why $(cat /tmp/target.4420.err) $(dmesg | grep nvme | tail -3)"
    fi
    quit nqn.t
}
reads "read, no digests"
reads "read, header digest" --hdr-digest
reads "read, data digest" --data-digest
reads "read, both digests" --hdr-digest --data-digest
reads "read, no flow control" --disable-sqflow

connect 4420 nqn.t >/dev/null
nvme list
d=$(device 1 nqn.t)
if dd if=/dev/zero of="$d" bs=4096 count=1 oflag=direct 2>/dev/null; then said read-only "a write was taken"; else said read-only; fi
dd if=/dev/urandom of=/tmp/model/new bs=4096 count=10 2>/dev/null
[ -b "$(device 4 nqn.t)" ] && same 4 /tmp/model/new && said added
dd if=/dev/urandom of=/tmp/model/new bs=4096 count=20 2>/dev/null
for _ in $(seq 60); do [ "$(size "$(device 4 nqn.t)")" = 160 ] && break; sleep 0.1; done
[ "$(size "$(device 4 nqn.t)")" = 160 ] && same 4 /tmp/model/new && said resized
b=$(device 4 nqn.t)
rm /tmp/model/new
for _ in $(seq 100); do [ -b "$b" ] || break; sleep 0.1; done
if [ -b "$b" ]; then said removed "still there"; else said removed; fi
quit nqn.t
stop 4420

# Writes.
truncate -s 48M /tmp/disk
serve 4421 /tmp/disk --nqn nqn.w --writable --block 4096
connect 4421 nqn.w --data-digest >/dev/null
d=$(device 1 nqn.w)
fio --name=v --filename="$d" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=4k-256k --size=24M \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --fsync=64 --randseed=7 >/tmp/fio.out 2>&1 \
    && said "write, fio" || said "write, fio" "$(tail -5 /tmp/fio.out) $(tail -3 /tmp/target.4421.err)"
quit nqn.w
connect 4421 nqn.w >/dev/null
d=$(device 1 nqn.w)
dd if=/dev/urandom of=/tmp/w bs=1M count=8 2>/dev/null
dd if=/tmp/w of="$d" bs=1M oflag=direct conv=fsync 2>/dev/null
dd if=/tmp/w of=/tmp/x bs=1M 2>/dev/null
blkdiscard -o 1048576 -l 1048576 "$d" 2>/dev/null
dd if=/dev/zero of=/tmp/x bs=1M seek=1 count=1 conv=notrunc 2>/dev/null
nvme write-zeroes "$d" -s 1024 -c 255 >/tmp/wz 2>&1
dd if=/dev/zero of=/tmp/x bs=1M seek=4 count=1 conv=notrunc 2>/dev/null
dd if="$d" bs=1M count=8 iflag=direct 2>/dev/null >/tmp/got
if cmp /tmp/got /tmp/x && head -c 8388608 /tmp/disk | cmp - /tmp/x; then said "write, discard and zeros"; else
    said "write, discard and zeros" "differs: $(cat /tmp/wz)"
fi

# The target is killed and restarted: the host reconnects, and flushed data is there.
quit nqn.w
connect 4421 nqn.w --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=2 >/dev/null
d=$(device 1 nqn.w)
dd if=/tmp/w of="$d" bs=256k oflag=direct conv=fsync 2>/dev/null
kill -9 "$(cat /tmp/target.4421.pid)"
(dd if=/tmp/w of="$d" bs=64k seek=256 oflag=direct conv=fsync 2>/tmp/dd.err; echo $? >/tmp/dd.rc) &
sleep 1
serve 4421 /tmp/disk --nqn nqn.w --writable --block 4096
for _ in $(seq 300); do [ -e /tmp/dd.rc ] && break; sleep 0.1; done
if [ "$(cat /tmp/dd.rc)" = 0 ] && head -c 8388608 /tmp/disk | cmp - /tmp/w \
    && tail -c +16777217 /tmp/disk | head -c 8388608 | cmp - /tmp/w; then said "killed and back"; else
    said "killed and back" "$(cat /tmp/dd.rc /tmp/dd.err) $(dmesg | tail -5)"
fi
quit nqn.w
stop 4421

# Authentication, one way and both ways; a wrong secret; none.
cat >/tmp/hosts.toml <<EOF
[[host]]
nqn = "$H"
secret = "$KEY"
controller_secret = "$KEY"
EOF
serve 4422 /tmp/model --nqn nqn.a --hosts /tmp/hosts.toml
wrong=
connect 4422 nqn.a --dhchap-secret="$KEY" >/tmp/auth.out 2>&1 || wrong="$wrong one way: $(cat /tmp/auth.out)"
[ -b "$(device 1 nqn.a)" ] || wrong="$wrong no device"
quit nqn.a
connect 4422 nqn.a --dhchap-secret="$KEY" --dhchap-ctrl-secret="$KEY" >/tmp/auth.out 2>&1 || wrong="$wrong both ways: $(cat /tmp/auth.out)"
[ -b "$(device 1 nqn.a)" ] || wrong="$wrong no device"
quit nqn.a
BAD=$(nvme gen-dhchap-key -m 0 2>/dev/null | tail -1)
connect 4422 nqn.a --dhchap-secret="$BAD" >/dev/null 2>&1 && wrong="$wrong a wrong secret was taken"
connect 4422 nqn.a --dhchap-secret="$KEY" --dhchap-ctrl-secret="$BAD" >/dev/null 2>&1 && wrong="$wrong a wrong controller was taken"
connect 4422 nqn.a >/dev/null 2>&1 && wrong="$wrong no secret was taken"
if [ -z "$wrong" ]; then said authentication; else said authentication "$wrong $(dmesg | tail -8)"; fi
stop 4422
serve 4423 /tmp/model --nqn nqn.l --allow nqn.somebody
if connect 4423 nqn.l >/tmp/out 2>&1; then said allow-list "let in"; else said allow-list; fi
stop 4423

# Two paths, one of which goes dark under reads.
ip addr add 10.9.9.1/32 dev lo
serve 4424 /tmp/model --nqn nqn.m --listen 10.9.9.1:4424
for a in 10.9.9.1 127.0.0.1; do
    nvme connect -t tcp -a $a -s 4424 -n nqn.m -i 1 --keep-alive-tmo=2 --reconnect-delay=1 >/dev/null
done
d=$(device 1 nqn.m)
echo "guest: paths $(ls /sys/class/nvme-subsystem/*/ 2>/dev/null | grep -c '^nvme[0-9]*$') device $d"
(for _ in 1 2 3 4 5 6 7 8; do dd if="$d" bs=256k iflag=direct 2>>/tmp/fo.err | cmp - /tmp/model/a >>/tmp/fo.out 2>&1 || echo bad >>/tmp/fo.out; sleep 0.3; done; echo end >>/tmp/fo.out) &
sleep 0.5
ip addr del 10.9.9.1/32 dev lo
for _ in $(seq 400); do grep -q end /tmp/fo.out 2>/dev/null && break; sleep 0.1; done
if [ "$(cat /tmp/fo.out)" = end ]; then said failover; else said failover "$(cat /tmp/fo.out /tmp/fo.err | tail -4) $(dmesg | tail -4)"; fi
quit nqn.m
stop 4424
sleep 1
cat /tmp/target.*.out
dmesg | grep -iE 'warn|bug:|oops' | head -5
