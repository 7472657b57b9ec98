/* Which qdiscs are this place's. */
#pragma once

#include "kernel.h"

/* Handle of every qdisc of ours, owner::ROOT_QDISC. */
#define OURS 0x74640000
/* Group of our IFB, owner::IFB_GROUP. */
#define IFB_GROUP 0x74696465

/* The network namespace of who measures: other ones have interfaces of the same numbers. */
const volatile __u32 namespace;

static __always_inline int is_ours(const struct Qdisc *qdisc)
{
	return qdisc->handle == OURS && qdisc->dev_queue->dev->nd_net.net->ns.inum == namespace;
}
