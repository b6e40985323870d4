# Hosts and targets of NVMe/TCP on one RAM disk, over the guest's loopback, interleaved. bench/nvme_guest.py runs it and
# puts ROUNDS and SECONDS_EACH in front. Each line is "run: ROUND WHAT LINE-OF-THE-PROGRAM".
modprobe brd rd_nr=1 rd_size=65536
modprobe nvmet_tcp
modprobe nvme_tcp
mount -t configfs config /sys/kernel/config 2>/dev/null
dd if=/dev/urandom of=/dev/ram0 bs=1M oflag=direct 2>/dev/null
N=/sys/kernel/config/nvmet
mkdir $N/subsystems/nqn.k $N/subsystems/nqn.k/namespaces/1 $N/ports/1
echo 1 >$N/subsystems/nqn.k/attr_allow_any_host
echo -n /dev/ram0 >$N/subsystems/nqn.k/namespaces/1/device_path
echo 1 >$N/subsystems/nqn.k/namespaces/1/enable
echo tcp >$N/ports/1/addr_trtype
echo ipv4 >$N/ports/1/addr_adrfam
echo 127.0.0.1 >$N/ports/1/addr_traddr
echo 4420 >$N/ports/1/addr_trsvcid
ln -s $N/subsystems/nqn.k $N/ports/1/subsystems/nqn.k
nvme-serve /dev/ram0 127.0.0.1:4421 nqn.o 9 >/tmp/target.out 2>/tmp/target.err &
for _ in $(seq 300); do grep -q '^serving' /tmp/target.err && break; sleep 0.1; done
U=11111111-2222-3333-4444-555555555555
for t in 4420,nqn=nqn.k 4421,nqn=nqn.o; do
    echo "transport=tcp,traddr=127.0.0.1,trsvcid=$t,nr_io_queues=1,disable_sqflow,keep_alive_tmo=60,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$U,hostid=$U" >/dev/nvme-fabrics
done
# The device of the namespace of subsystem $1.
device() {
    for _ in $(seq 100); do
        for b in /sys/block/nvme*n*; do
            [ "$(cat "$b/device/subsysnqn" 2>/dev/null)" = "$1" ] && [ -b "/dev/${b##*/}" ] && echo "/dev/${b##*/}" && return
        done
        sleep 0.1
    done
}
K=$(device nqn.k) O=$(device nqn.o)
echo "guest: kernel host has $K of nvmet and $O of ours"
run() { # WHAT COMMAND...
    what=$1
    shift
    echo "run: $round $what $("$@" 2>&1 | tail -1)"
}
round=0
while [ $round -lt "$ROUNDS" ]; do
    for work in "4096 32" "131072 8" "1048576 4"; do
        set -- $work
        run tcpbench-nvmet tcpbench tcp 127.0.0.1 4420 nqn.k 1 "$1" "$2" "$SECONDS_EACH"
        run ours-nvmet nvme-read 127.0.0.1:4420 nqn.k 1 "$1" "$2" "$SECONDS_EACH"
        run kernel-nvmet tcpbench blk "$K" "$1" "$2" "$SECONDS_EACH"
        run kernel-ours tcpbench blk "$O" "$1" "$2" "$SECONDS_EACH"
        run ours-ours nvme-read 127.0.0.1:4421 nqn.o 1 "$1" "$2" "$SECONDS_EACH"
    done
    round=$((round + 1))
done
