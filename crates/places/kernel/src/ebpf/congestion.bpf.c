/* Marks "congestion experienced" (CE, RFC 3168) where frames would wait for long in one queue for all.
 *
 *   ingress of a netdev, or its root qdisc ─▶ bytes on the wire ─▶ a virtual queue ─▶ wait above the target, and ECT: CE set
 *
 * A filter is asked before a frame waits and does not see the queue, so it counts one of its own: what the class below lets
 * go, by the same rate and burst. It ends where the real one drops, so both are right again whenever the queue is empty or full.
 */
#include "congestion.h"
#include "traffic_class.h"

#include <linux/pkt_cls.h>

#define NS_PER_S 1000000000ULL
#define ECN 3

/* Of the class that frames wait for: bytes per second; ns that its burst lasts; how long frames may wait before they are marked,
 * and how long they wait at most, ns. */
const volatile struct {
	__u64 rate, burst, target, room;
} limit = { .rate = 1 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct virtual_queue);
} queue SEC(".maps");

/* How long what comes now waits; it waits from now on. */
static __always_inline __u64 enqueue(struct virtual_queue *queue, __u64 cost, __u64 now)
{
	/* What came while the class had all its tokens is lost. */
	__u64 full = now > limit.burst ? now - limit.burst : 0;
	__u64 empty = queue->empty > full ? queue->empty : full;
	__u64 waits = empty > now ? empty - now : 0;

	/* What does not fit is dropped. */
	queue->empty = empty + cost < now + limit.room ? empty + cost : now + limit.room;
	return waits;
}

/* Whether it is marked now, and was not before. */
static __always_inline int set_ce(struct __sk_buff *skb)
{
	struct ip_words ip;

	if (read_ip(skb, &ip))
		return 0;
	__u32 shift = ip.is_ipv4 ? ECN_SHIFT_IPV4 : ECN_SHIFT_IPV6;
	__u16 before = bpf_ntohs(ip.words[0]);
	__u16 ecn = before >> shift & ECN;

	if (!ecn || ecn == ECN)
		return 0;
	return !write_first(skb, &ip, bpf_htons(before | ECN << shift));
}

SEC("tc")
int congestion(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct virtual_queue *here = bpf_map_lookup_elem(&queue, &only);
	struct wire wire;

	if (!here || !limit.rate)
		return TC_ACT_UNSPEC;
	/* Of headers that cannot be followed it is what there is. */
	if (on_wire(skb, &wire))
		wire = (struct wire){ .frames = 1, .bytes = skb->len };
	__u64 now = bpf_ktime_get_ns();
	__u64 cost = wire.bytes * NS_PER_S / limit.rate;

	/* When it came, as `classify.bpf.c` writes it. */
	skb->cb[3] = now;
	skb->cb[4] = now >> 32;
	bpf_spin_lock(&here->lock);
	__u64 waits = enqueue(here, cost, now);

	bpf_spin_unlock(&here->lock);
	if (waits > limit.target && set_ce(skb))
		__sync_fetch_and_add(&here->marked, wire.frames);
	/* What else is here decides where it goes. */
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
