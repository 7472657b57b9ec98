/* Sockets of uplinks reach peers, and nothing else.
 *
 *   packet of a socket ─ has the socket a group? ─ no ─▶ passes: a socket of another program
 *                          └─ yes: is (group, address, port) in `peers`? ─▶ passes, or is refused: EPERM
 *
 * It sees packets as they leave, so it does not matter how the sender named the destination: by sendmsg, connect, or a source
 * route. A train is one packet here; it is cut later.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PASS 1
#define REFUSE 0

/* Of IPv4, the header without options, which could lead elsewhere first. */
#define IPV4_FIRST_BYTE 0x45
#define IPV4_HEADER 20
#define IPV4_PROTOCOL 9
#define IPV4_DESTINATION 16
#define IPV6_HEADER 40
#define IPV6_NEXT_HEADER 6
#define IPV6_DESTINATION 24
#define UDP_DESTINATION 2

/* A destination of the sockets of one group. */
struct destination {
	__u64 group;
	/* IPv4 in the first four bytes, the others 0. */
	__u8 address[16];
	/* Big-endian. */
	__u16 port;
	__u16 version;
	__u32 zero;
};

/* The group of a socket; it goes with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, struct destination);
	__type(value, __u8);
} peers SEC(".maps");

SEC("cgroup_skb/egress")
int tidegate_peers(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;
	struct destination to = {};
	__u64 *group;
	__u32 port_at;
	__u8 first;
	__u8 protocol;

	if (!socket)
		return PASS;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return PASS;
	group = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!group)
		return PASS;
	to.group = *group;
	if (bpf_skb_load_bytes(skb, 0, &first, sizeof(first)))
		return REFUSE;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		to.version = 4;
		port_at = IPV4_HEADER + UDP_DESTINATION;
		if (first != IPV4_FIRST_BYTE || bpf_skb_load_bytes(skb, IPV4_PROTOCOL, &protocol, 1) ||
		    bpf_skb_load_bytes(skb, IPV4_DESTINATION, to.address, 4))
			return REFUSE;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		to.version = 6;
		port_at = IPV6_HEADER + UDP_DESTINATION;
		if (bpf_skb_load_bytes(skb, IPV6_NEXT_HEADER, &protocol, 1) ||
		    bpf_skb_load_bytes(skb, IPV6_DESTINATION, to.address, 16))
			return REFUSE;
	} else {
		return REFUSE;
	}
	/* Extension headers hide the port, and may be source routes. */
	if (protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, port_at, &to.port, 2))
		return REFUSE;
	return bpf_map_lookup_elem(&peers, &to) ? PASS : REFUSE;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
