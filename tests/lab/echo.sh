#!/bin/busybox sh
# First process of a guest that migrates: all of it is in its own memory, since QEMU does not
# migrate shared folders. Port 7 sends back what it gets, port 8 tells the checksum of a file.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules/order); do
    $b insmod "/modules/$module.ko" || $b echo "lab: module $module did not load"
done
address=$($b sed 's/.*lab.address=\([^ ]*\).*/\1/' /proc/cmdline)
$b ip link set lo up
$b ip addr add "$address" dev eth0
$b ip link set eth0 up
$b dd if=/dev/urandom of=/file bs=1M count=8 2>/dev/null
printf '#!/bin/busybox sh\n/bin/busybox md5sum /file\n' >/sum
$b chmod +x /sum
$b nc -ll -p 7 -e "$b" cat &
$b nc -ll -p 8 -e /sum &
$b echo "lab: ready"
while :; do $b sleep 1000; done
