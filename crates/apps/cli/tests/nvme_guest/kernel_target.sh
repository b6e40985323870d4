# Our host against Linux's target on a ram disk, over the guest's loopback. Follows host.sh in the same guest.
modprobe brd rd_nr=1 rd_size=32768
modprobe nvmet_tcp
mount -t configfs config /sys/kernel/config 2>/dev/null
N=/sys/kernel/config/nvmet
mkdir $N/subsystems/nqn.k $N/subsystems/nqn.k/namespaces/1 $N/ports/1 $N/ports/2
echo 1 >$N/subsystems/nqn.k/attr_allow_any_host
echo -n /dev/ram0 >$N/subsystems/nqn.k/namespaces/1/device_path
echo 1 >$N/subsystems/nqn.k/namespaces/1/enable
for p in 1 2; do
    echo tcp >$N/ports/$p/addr_trtype
    echo ipv4 >$N/ports/$p/addr_adrfam
    echo 127.0.0.1 >$N/ports/$p/addr_traddr
    echo 443$p >$N/ports/$p/addr_trsvcid
    ln -s $N/subsystems/nqn.k $N/ports/$p/subsystems/nqn.k
done
# The target goes past the page cache of the ram disk, and so must we.
disk() { dd if=/dev/ram0 bs=1M iflag=direct 2>/dev/null; }
dd if=/dev/urandom of=/tmp/back bs=1M count=32 2>/dev/null
dd if=/tmp/back of=/dev/ram0 bs=1M oflag=direct 2>/dev/null
K=nvme-tcp://127.0.0.1:4431/nqn.k/1
ours() { # NAME OPTIONS...
    name=$1
    shift
    rm -f /tmp/got
    if why=$(straightway copy "$K" /tmp/got --nvme-keep-alive 60 "$@" 2>&1) && cmp /tmp/got /tmp/back; then said "$name"; else said "$name" "$why"; fi
}
ours "our host reads"
ours "our host reads, both digests" --nvme-digests both
dd if=/dev/urandom of=/tmp/back bs=1M count=32 2>/dev/null
if why=$(straightway copy /tmp/back "$K" --nvme-keep-alive 60 2>&1) && disk | cmp - /tmp/back; then said "our host writes"; else said "our host writes" "$why"; fi
if why=$(straightway copy nvme-tcp://127.0.0.1:4431/nqn.other/1 /tmp/no 2>&1); then said "our host, wrong name" "it was opened"; else
    said "our host, wrong name"
    echo "guest: $why"
fi
# Authentication: the same secret on both sides, then another.
echo 0 >$N/subsystems/nqn.k/attr_allow_any_host
mkdir "$N/hosts/$H"
echo -n "$KEY" >"$N/hosts/$H/dhchap_key"
echo -n "$KEY" >"$N/hosts/$H/dhchap_ctrl_key"
echo ffdhe2048 >"$N/hosts/$H/dhchap_dhgroup"
ln -s "$N/hosts/$H" "$N/subsystems/nqn.k/allowed_hosts/$H"
echo "$KEY" >/tmp/key
echo "$BAD" >/tmp/bad
ours "our host authenticates" --nvme-secret-file /tmp/key --nvme-ctrl-secret-file /tmp/key
if why=$(straightway copy "$K" /tmp/no --nvme-secret-file /tmp/bad 2>&1); then said "our host, wrong secret" "let in"; else
    said "our host, wrong secret"
    echo "guest: $why"
fi
rm -f /tmp/got /tmp/back
# And our own two, by name.
serve 4440 /tmp/model --nqn nqn.o
if why=$(straightway copy nvme-tcp://127.0.0.1:4440/nqn.o/model/b /tmp/got 2>&1) && cmp /tmp/got /tmp/model/b; then said "our host, our target"; else
    said "our host, our target" "$why"
fi
stop 4440
