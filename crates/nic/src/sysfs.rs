//! What only files say: /sys/class/net.
