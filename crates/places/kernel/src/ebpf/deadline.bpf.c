/* How long frames of real-time vNICs take to another vNIC of this host, and what became of those that were late.
 *
 *   qdisc_dequeue on the IFB ─▶ `frames`: its clock starts, the envelope has let it go
 *   qdisc_enqueue, qdisc_dequeue at the receiver's netdev ─▶ when it came there, and when it left
 *   consume_skb (a tap: who reads took it), netif_receive_skb (a veth: its other end has it) ─▶ `delays`
 *   kfree_skb ─▶ `delays`: it is lost
 *
 * A frame is known by its address. A copy, as floods make, has another one and is not measured.
 */
#include "deadline.h"
#include "ours.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Frames that one dequeue takes at most (a device with byte queue limits takes several). */
#define BULK 64

/* A frame under way. Times are CLOCK_MONOTONIC, ns; 0 is not yet. */
struct frame {
	__u64 started;
	__u64 queued;
	__u64 left;
	struct promise promise;
};

/* One that ends where no program looks goes when its address is used again. Not an LRU hash: that lost frames under way
 * (Linux 6.18, some of 40 in one run of ten of the test), long before it was full. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct frame);
} frames SEC(".maps");

/* Interface indices of the netdevs of real-time vNICs: who measures puts them in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} senders SEC(".maps");

/* As `senders`, with whom each promise is for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct promise);
	__type(value, struct delays);
} delays SEC(".maps");

static __always_inline struct frame *find(const struct sk_buff *skb)
{
	__u64 address = (__u64)skb;

	return bpf_map_lookup_elem(&frames, &address);
}

static __always_inline void forget(const struct sk_buff *skb)
{
	__u64 address = (__u64)skb;

	bpf_map_delete_elem(&frames, &address);
}

static __always_inline void start(const struct sk_buff *skb, __u64 now)
{
	__u64 address = (__u64)skb;
	struct frame frame = { .started = now, .promise.from = skb->skb_iif };
	__u8 first;

	/* Deadlines are promised to single receivers: bit 0 of the destination is that of groups. */
	if (!bpf_map_lookup_elem(&senders, &frame.promise.from) ||
	    bpf_probe_read_kernel(&first, sizeof(first), skb->data) || first & 1)
		return;
	bpf_map_update_elem(&frames, &address, &frame, BPF_ANY);
}

/* The frame that is at a receiver's netdev. Another frame may have got the address of one whose end no program saw: it came
 * in by another device. */
static __always_inline struct frame *find_at(__u32 ifindex, const struct sk_buff *skb)
{
	struct frame *frame = find(skb);

	if (!frame || frame->promise.from != (__u32)skb->skb_iif)
		return NULL;
	/* Nor has one to a group started here: it got the address of one that did, from the same sender. */
	__u8 first = 1;

	bpf_probe_read_kernel(&first, sizeof(first), skb->data);
	if (first & 1) {
		forget(skb);
		return NULL;
	}
	frame->promise.to = ifindex;
	return frame;
}

static __always_inline enum part longest(const __u64 *parts)
{
	if (parts[HOST] > parts[QUEUE] && parts[HOST] > parts[RECEIVER])
		return HOST;
	return parts[RECEIVER] > parts[QUEUE] ? RECEIVER : QUEUE;
}

/* How long each part took of a frame that ended at some time. */
static __always_inline void split(const struct frame *frame, __u64 end, __u64 *parts)
{
	__u64 queued = frame->queued ? frame->queued : end;
	__u64 left = frame->left ? frame->left : end;

	parts[HOST] = queued - frame->started;
	parts[QUEUE] = left > queued ? left - queued : 0;
	parts[RECEIVER] = end - left;
}

static __always_inline void remember(struct miss *misses, __u64 number, const struct miss *miss)
{
	struct miss *place = &misses[number % REMEMBERED];

	/* A reader takes none that is half written. */
	place->at = 0;
	barrier();
	for (int i = 0; i < PARTS; i++)
		place->parts[i] = miss->parts[i];
	place->loss = miss->loss;
	barrier();
	place->at = miss->at;
}

static __always_inline void arrived(const struct frame *frame)
{
	struct promise promise = frame->promise;
	struct delays *seen = bpf_map_lookup_elem(&delays, &promise);
	struct miss miss = { .at = bpf_ktime_get_ns() };

	if (!seen)
		return;
	__u64 delay = miss.at - frame->started;
	__u64 index = bucket(delay);

	/* What is checked is what is used: the verifier does not see that through a copy. */
	barrier_var(index);
	if (index < BUCKETS)
		seen->buckets[index]++;
	seen->sum += delay;
	if (delay > seen->max)
		seen->max = delay;
	if (delay <= seen->deadline)
		return;
	split(frame, miss.at, miss.parts);
	remember(seen->delivered, seen->late[HOST] + seen->late[QUEUE] + seen->late[RECEIVER], &miss);
	seen->late[longest(miss.parts)]++;
}

static __always_inline void lost(const struct frame *frame, __u32 to, enum loss loss)
{
	struct promise promise = { .from = frame->promise.from, .to = to };
	struct delays *seen = bpf_map_lookup_elem(&delays, &promise);
	struct miss miss = { .at = bpf_ktime_get_ns(), .loss = loss };

	if (!seen)
		return;
	split(frame, miss.at, miss.parts);
	remember(seen->dropped, seen->lost[OTHER] + seen->lost[QUEUE_FULL] + seen->lost[RING_FULL], &miss);
	seen->lost[loss]++;
}

/* Whether it has come to the receiver's netdev: it ends as delivered, or by kfree_skb. On a busy host some frames are not seen
 * when they leave that queue (Linux 6.18, up to 11 of 40): their time at the receiver counts for the queue. */
static __always_inline int is_at_receiver(const struct frame *frame)
{
	return frame->queued || frame->left;
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(enqueued, const struct Qdisc *qdisc, const struct netdev_queue *txq, struct sk_buff *skb)
{
	if (!is_ours(qdisc))
		return 0;
	const struct net_device *device = qdisc->dev_queue->dev;
	struct frame *frame = device->group == IFB_GROUP ? NULL : find_at(device->ifindex, skb);

	if (frame)
		frame->queued = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(dequeued, const struct Qdisc *qdisc, const struct netdev_queue *txq, int packets,
	     struct sk_buff *skb)
{
	if (!skb || !is_ours(qdisc))
		return 0;
	__u64 now = bpf_ktime_get_ns();
	const struct net_device *device = qdisc->dev_queue->dev;
	/* Not in the loop: of each pointer that is followed the verifier asks what it is, which takes it a millisecond. */
	int starts = device->group == IFB_GROUP;
	__u32 ifindex = device->ifindex;

	for (int i = 0; i < BULK && i < packets && skb; i++, skb = skb->next) {
		if (starts) {
			start(skb, now);
			continue;
		}
		struct frame *frame = find_at(ifindex, skb);

		if (frame)
			frame->left = now;
	}
	return 0;
}

SEC("tp_btf/consume_skb")
int BPF_PROG(consumed, struct sk_buff *skb)
{
	struct frame *frame = find(skb);

	if (!frame)
		return 0;
	if (is_at_receiver(frame))
		arrived(frame);
	forget(skb);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(received, struct sk_buff *skb)
{
	struct frame *frame = find(skb);

	/* Before that it comes in by the sender's own netdev, from the IFB. */
	if (!frame || !is_at_receiver(frame))
		return 0;
	arrived(frame);
	forget(skb);
	return 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(freed, struct sk_buff *skb, void *location, enum skb_drop_reason reason)
{
	struct frame *frame = find(skb);

	if (!frame)
		return 0;
	__u32 to = frame->promise.to;
	enum loss loss = OTHER;

	/* A queue that is full is passed without being entered. */
	if (!to && frame->promise.from == (__u32)skb->skb_iif)
		to = skb->dev->ifindex;
	if (reason == bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_QDISC_DROP))
		loss = QUEUE_FULL;
	else if (reason == bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_FULL_RING))
		loss = RING_FULL;
	lost(frame, to, loss);
	forget(skb);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
