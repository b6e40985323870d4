# The nvme cases of blktests with Linux's host against our target. bench/blktests.py runs it in the guest, with CASES in
# front and the sources in /tmp/blktests. Each line is "result: CASE LINE".
mkdir -p /boot /tmp/results /var/tmp /usr/bin /root
for m in loop nvme_tcp nvme_fabrics nvme_auth dh_generic hmac sha256 sha512 nvmet nvmet_tcp nvme_loop; do modprobe $m 2>/dev/null; done
mount -t configfs config /sys/kernel/config 2>/dev/null
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
ln -sf /proc/self/fd /dev/fd
ln -sf /bin/env /usr/bin/env
echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
cat >/bin/target-control <<'CONTROL'
#!/bin/bash
# The commands that blktests requires for a target other than nvmet.
verb=$1
shift
nqn=blktests-subsystem-1 host=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 key= ctrkey=
case $verb in
config)
    case $1 in
    --show-trtype) echo tcp ;;
    --show-blkdev-type) echo file ;;
    --show-hostnqn) echo $host ;;
    --show-hostid) echo 0f01fb42-9f7f-4856-b0b3-51e60b8de349 ;;
    --show-host-traddr | --show-traddr) echo 127.0.0.1 ;;
    --show-trsvid) echo 4420 ;;
    --show-subsysnqn) echo $nqn ;;
    --show-subsys-uuid) cat /tmp/uuid ;;
    esac
    ;;
setup)
    while [ $# -gt 0 ]; do
        case $1 in
        --subsysnqn) nqn=$2 ;;
        --hostnqn) host=$2 ;;
        --hostkey) key=$2 ;;
        --ctrkey) ctrkey=$2 ;;
        esac
        shift 2
    done
    hosts="[[host]]
nqn = \"$host\""
    [ -z "$key" ] || hosts="$hosts
secret = \"$key\""
    [ -z "$ctrkey" ] || hosts="$hosts
controller_secret = \"$ctrkey\""
    echo "$hosts" >/tmp/hosts.toml
    mkdir -p /tmp/served
    [ -e /tmp/served/ns ] || truncate -s ${NS_SIZE:-400M} /tmp/served/ns
    straightway -v target /tmp/served/ns --nqn "$nqn" --writable --block 4096 --hosts /tmp/hosts.toml --listen 127.0.0.1:4420 >>/tmp/target.out 2>/tmp/target.err </dev/null &
    echo $! >/tmp/target.pid
    for _ in $(seq 300); do grep -q '^serving' /tmp/target.err && exit 0; sleep 0.1; done
    exit 1
    ;;
cleanup)
    kill "$(cat /tmp/target.pid)" 2>/dev/null
    for _ in $(seq 100); do kill -0 "$(cat /tmp/target.pid)" 2>/dev/null || exit 0; sleep 0.05; done
    ;;
esac
exit 0
CONTROL
chmod +x /bin/target-control
export NVME_TARGET_CONTROL=/bin/target-control
# The UUID of the namespace is derived from the names, so it can be read once, here.
target-control setup --subsysnqn blktests-subsystem-1
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n blktests-subsystem-1 -q nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 -I 0f01fb42-9f7f-4856-b0b3-51e60b8de349
sleep 1
cat /sys/block/nvme*n*/uuid /sys/block/nvme*/wwid 2>/dev/null | head -3
# With multipath the path has an entry too.
cat /sys/block/nvme*n*/uuid | head -n 1 >/tmp/uuid
nvme disconnect-all
target-control cleanup
cd /tmp/blktests || exit
cat >config <<CONFIG
NVMET_TRTYPES=tcp
NVME_IMG_SIZE=400M
NVME_NUM_ITER=20
CONFIG
for case in $CASES; do
    echo "guest: $case at $(cut -d' ' -f1 /proc/uptime)"
    timeout 150 bash ./check "nvme/$case" >/tmp/check.out 2>&1
    sed "s|^|result: $case |" /tmp/check.out
    nvme disconnect-all >/dev/null 2>&1
    target-control cleanup
done
