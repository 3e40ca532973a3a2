#!/bin/busybox sh
# What runs in the virtual machine: it uses /dev/vda in every way, and says on the console what came of it.
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs -o size=128m none /tmp
LOAD_MODULES
fail() { echo "GUEST failed: $*"; dmesg | tail -20; reboot -f; }
forget() { sync; echo 3 > /proc/sys/vm/drop_caches; }

n=0
while [ ! -b /dev/vda ]; do sleep 0.1; n=$((n + 1)); [ $n -lt 200 ] || fail "no disk"; done
vda=/sys/block/vda
echo "GUEST disk $(cat $vda/size) queues=$(ls $vda/mq | wc -l) serial=$(cat $vda/serial)" \
  "blocks=$(cat $vda/queue/logical_block_size)/$(cat $vda/queue/physical_block_size)" \
  "discard=$(cat $vda/queue/discard_max_bytes) zeroes=$(cat $vda/queue/write_zeroes_max_bytes)" \
  "cache=$(tr -d ' ' < $vda/queue/write_cache)"

# Each processor has a queue of its own: two writers at once, and readers of what the other one wrote.
dd if=/dev/urandom of=/tmp/one bs=1M count=8 2>/dev/null
dd if=/dev/urandom of=/tmp/two bs=1M count=8 2>/dev/null
taskset 1 dd if=/tmp/one of=/dev/vda bs=64k seek=1024 conv=notrunc,fsync 2>/dev/null &
taskset 2 dd if=/tmp/two of=/dev/vda bs=64k seek=2048 conv=notrunc,fsync 2>/dev/null || fail "write"
wait
forget
taskset 2 dd if=/dev/vda bs=64k skip=1024 count=128 2>/dev/null | cmp - /tmp/one || fail "the first one's bytes"
taskset 1 dd if=/dev/vda bs=64k skip=2048 count=128 2>/dev/null | cmp - /tmp/two || fail "the second one's bytes"
echo "GUEST verified"

# What was discarded reads as zeros, and its neighbours stay.
blkdiscard -o $((1024 * 65536)) -l $((4 * 1048576)) /dev/vda || fail "discard"
forget
dd if=/dev/zero of=/tmp/zeros bs=1M count=4 2>/dev/null
dd if=/dev/vda bs=64k skip=1024 count=64 2>/dev/null | cmp - /tmp/zeros || fail "what was discarded"
dd if=/tmp/one bs=64k skip=64 of=/tmp/rest 2>/dev/null
dd if=/dev/vda bs=64k skip=1088 count=64 2>/dev/null | cmp - /tmp/rest || fail "the neighbours of what was discarded"
echo "GUEST discarded"

# A file system.
mke2fs -F /dev/vda 65536 > /dev/null 2>&1 || fail "mke2fs"
mount -t ext4 /dev/vda /mnt || fail "mount"
cp /tmp/one /mnt/one
mkdir /mnt/many
for i in $(seq 200); do echo $i > /mnt/many/$i; done
umount /mnt
forget
mount -t ext4 /dev/vda /mnt || fail "mount again"
cmp /mnt/one /tmp/one || fail "a file"
[ "$(cat /mnt/many/* | wc -l)" = 200 ] || fail "many files"
umount /mnt
echo "GUEST mounted"

# Two writers that go on, whatever happens to the other side; then all that they wrote is read.
writer() {
  for i in $(seq 0 79); do
    taskset $1 dd if=$2 of=/dev/vda bs=64k skip=$((i % 128)) seek=$(($3 + i)) count=1 conv=notrunc,fsync 2>/dev/null || fail "writer $1"
    echo "GUEST wrote $1 $i $(cut -d' ' -f1 /proc/uptime)"
  done
}
echo "GUEST writing"
writer 1 /tmp/one 4096 &
writer 2 /tmp/two 6144
wait
forget
dd if=/dev/vda bs=64k skip=4096 count=80 2>/dev/null > /tmp/read
dd if=/tmp/one bs=64k count=80 2>/dev/null | cmp - /tmp/read || fail "what the first writer wrote"
dd if=/dev/vda bs=64k skip=6144 count=80 2>/dev/null > /tmp/read
dd if=/tmp/two bs=64k count=80 2>/dev/null | cmp - /tmp/read || fail "what the second writer wrote"
echo "GUEST errors $(dmesg | grep -c -i -E 'error|blocked for more')"
echo "GUEST done"
reboot -f
