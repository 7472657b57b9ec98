/* How long frames wait in the qdiscs of this place.
 *
 *   qdisc_enqueue ─▶ `waiting`: when each frame came ─▶ qdisc_dequeue ─▶ `queues`: histogram of its queue
 *   IFB: `classify.bpf.c`, `congestion.bpf.c`, fq_codel, cake: written into the frame ──┘
 *
 * Both tracepoints are passed with the lock of the root qdisc held, so each value has one writer at a time.
 */
#include "ours.h"
#include "wait.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* A frame that left sooner met tokens: that is the passage itself. */
#define PASSAGE_NS 20000
/* Longer than any frame waits: it was not this place's program that wrote when it came. */
#define LONGEST_NS 600000000000ULL
/* fq_codel counts in units of 1024 ns (CODEL_SHIFT, include/net/codel.h). */
#define CODEL_SHIFT 10

/* Frames that one dequeue takes at most (a device with byte queue limits takes several). */
#define BULK 64

/* When a frame, known by its address, was enqueued. One that a qdisc drops later is never asked for, and
 * makes room as the oldest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} waiting SEC(".maps");

/* The queues that are measured: who measures puts them in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct end);
	__type(value, struct waits);
} queues SEC(".maps");

static __always_inline struct waits *queue_of(__u32 ifindex, const struct sk_buff *skb)
{
	struct end end = { .ifindex = ifindex };
	struct waits *waits = bpf_map_lookup_elem(&queues, &end);

	if (waits)
		return waits;
	/* On the IFB: the netdev it was redirected from. */
	end.ifindex = skb->skb_iif;
	end.ingress = 1;
	return bpf_map_lookup_elem(&queues, &end);
}

static __always_inline void record(struct waits *waits, __u64 came, __u64 now)
{
	__u64 waited = now - came;
	/* It was the first in the queue since then. */
	__u64 first = came > waits->left ? came : waits->left;
	__u32 index = bucket(waited);

	if (waited >= PASSAGE_NS)
		waits->throttled_ns += now - first;
	waits->left = now;
	waits->sum += waited;
	if (waited > waits->max)
		waits->max = waited;
	if (index < BUCKETS)
		waits->buckets[index]++;
}

/* What is written into a frame at some byte of what the qdisc may write there. */
static __always_inline int written(const struct sk_buff *skb, __u32 at, void *value, __u32 size)
{
	at += bpf_core_field_offset(struct sk_buff, cb) + bpf_core_field_offset(struct qdisc_skb_cb, data);
	return bpf_probe_read_kernel(value, size, (const void *)skb + at);
}

/* When a frame came, 0 where that is not known. */
static __always_inline __u64 when(const struct waits *waits, int is_ifb, const struct sk_buff *skb, __u64 now)
{
	__u64 frame = (__u64)skb;
	__u64 came = 0;
	__u32 units = 0;

	if (is_ifb || waits->came == CAME_STAMPED)
		return written(skb, 12, &came, sizeof(came)) ? 0 : came;
	switch (waits->came) {
	case CAME_ADDRESS: {
		__u64 *noted = bpf_map_lookup_elem(&waiting, &frame);

		if (noted) {
			came = *noted;
			bpf_map_delete_elem(&waiting, &frame);
		}
		return came;
	}
	case CAME_FQ_CODEL:
		if (written(skb, 0, &units, sizeof(units)))
			return 0;
		return now - ((__u64)((__u32)(now >> CODEL_SHIFT) - units) << CODEL_SHIFT);
	case CAME_CAKE:
		return written(skb, 0, &came, sizeof(came)) ? 0 : came;
	}
	return 0;
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(enqueued, const struct Qdisc *qdisc, const struct netdev_queue *txq, struct sk_buff *skb)
{
	if (!is_ours(qdisc) || qdisc->dev_queue->dev->group == IFB_GROUP)
		return 0;
	struct waits *waits = queue_of(qdisc->dev_queue->dev->ifindex, skb);

	if (!waits || waits->came != CAME_ADDRESS)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	__u64 frame = (__u64)skb;

	bpf_map_update_elem(&waiting, &frame, &now, BPF_ANY);
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(dequeued, const struct Qdisc *qdisc, const struct netdev_queue *txq, int packets,
	     struct sk_buff *skb)
{
	if (!skb || !is_ours(qdisc))
		return 0;
	__u64 now = bpf_ktime_get_ns();
	/* Not in the loop: of each pointer that is followed the verifier asks what it is, which takes it a millisecond. */
	__u32 ifindex = qdisc->dev_queue->dev->ifindex;
	int is_ifb = qdisc->dev_queue->dev->group == IFB_GROUP;

	for (int i = 0; i < BULK && i < packets && skb; i++, skb = skb->next) {
		struct waits *waits = queue_of(ifindex, skb);
		__u64 came = waits ? when(waits, is_ifb, skb, now) : 0;

		if (waits && came && came <= now && now - came < LONGEST_NS)
			record(waits, came, now);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
