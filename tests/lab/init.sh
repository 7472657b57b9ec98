#!/bin/busybox sh
# First process of a lab guest: the host's own files, read-only under a
# writable overlay, then one command per line from the virtio-serial port.
#
#   host ──▶ "SEQ SECONDS BASE64-COMMAND"     guest ──▶ "SEQ STATUS BASE64-STDOUT BASE64-STDERR"
#                                             ("-" where nothing was printed)
#
# With `lab.systemd` on the kernel's command line, systemd becomes the first
# process of those files, and commands come by a child of it.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev

for module in $($b cat /modules/order); do
    $b insmod "/modules/$module.ko" || $b echo "lab: module $module did not load"
done

fail() {
    $b echo "lab: $*"
    $b poweroff -f
}

$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host || fail "no 9p share"
$b mount -t tmpfs rw /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "no overlay"
$b mount -t proc proc /new/proc
$b mount -t sysfs sys /new/sys
$b mount --move /dev /new/dev
$b ln -sf /proc/self/fd /new/dev/fd
$b mkdir -p /new/dev/shm
$b mount -t tmpfs run /new/run
for interface in /sys/class/net/*; do
    $b ip link set "${interface##*/}" up
done

# /dev was moved away; commands, and a shell's second process, read from this device.
$b mknod /dev/null c 1 3

# Runs commands in the root folder $1. They come through a file in that folder itself: over any below it, such as
# /tmp, systemd or a test may mount something between writing the file and reading it.
serve() {
    $b echo "0 0 - -" >&3
    while read -r seq seconds command <&3; do
        $b echo "$command" | $b base64 -d >"$1/.command"
        $b timeout -s KILL "$seconds" $b chroot "$1" /usr/bin/env -i \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            /bin/sh /.command </dev/null >/rw/stdout 2>/rw/stderr 3<&-
        status=$?
        out=$($b base64 -w 0 /rw/stdout)
        err=$($b base64 -w 0 /rw/stderr)
        # The shell's own: a program's arguments may not be as long as what a command printed.
        echo "$seq $status ${out:--} ${err:--}" >&3
    done
}

# A port opens once: this descriptor is the whole conversation.
exec 3<>"/new/dev/$($b basename "$($b dirname "$($b grep -l '^lab$' /sys/class/virtio-ports/*/name)")")"
if ! $b grep -qw lab.systemd /proc/cmdline; then
    serve /new
fi

# Nothing of what the host has enabled, and of a boot's own services a journal alone.
for folder in /new/etc/systemd/system /new/usr/lib/systemd/system/sysinit.target.wants; do
    $b mount -t tmpfs none "$folder"
done
$b rm -f /new/.dockerenv
# What systemd runs in has to be the root folder of all; until it is, process 1 is in the initramfs.
(
    while [ -e /proc/1/root/modules/order ]; do
        $b sleep 0.1
    done
    serve /proc/1/root
) &
cd /new || fail "no root"
$b mount --move . /
exec $b chroot . /lib/systemd/systemd --unit=systemd-journald.service 3<&-
