/* The kernel's structures that the programs use. Offsets come from the running kernel: its BTF
 * is asked when a program is loaded (CO-RE), so a member that moves is no change here.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	int group;
	possible_net_t nd_net;
};

struct netdev_queue {
	struct net_device *dev;
};

struct Qdisc {
	__u32 handle;
	struct netdev_queue *dev_queue;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	int skb_iif;
	unsigned char *data;
	/* What each layer keeps with it; in a qdisc, struct qdisc_skb_cb. */
	char cb[48];
};

struct qdisc_skb_cb {
	/* The qdisc's own. */
	unsigned char data[20];
};

/* Why a frame was dropped; the numbers are the running kernel's (net/dropreason-core.h). */
enum skb_drop_reason {
	SKB_DROP_REASON_FULL_RING = 1,
	SKB_DROP_REASON_QDISC_DROP,
};

#pragma clang attribute pop
