/* The flow of a frame, and what the loader writes into maps. Shared with the loader's side, src/key.rs and src/layout.rs, which
 * repeat it.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

/* Most masks of a table. */
#define MASKS 8
/* Places among which the CPUs for unmatched flows are divided. */
#define PLACES_BITS 10
#define PLACES (1 << PLACES_BITS)
/* Most pairs of outer addresses. */
#define PEERS 4096

/* Where the fields of a flow come from. */
enum tunnel {
	TUNNEL_NONE,
	TUNNEL_VXLAN,
	TUNNEL_GENEVE,
	TUNNEL_GRE,
	TUNNEL_ESP,
};

#define KEY_WORDS 7

/* A flow. Numbers are in the machine's byte order, addresses in the wire's; absent ones are 0. */
struct flow {
	/* IPv4 has the first four bytes. */
	__u8 from[16];
	__u8 to[16];
	/* VNI, GRE key or SPI. */
	__u32 id;
	/* 0 of an exact entry; else the number of its mask, by which entries of all masks share a map. */
	__u32 mask;
	__u16 vlan;
	__u16 from_port;
	__u16 to_port;
	__u8 mac[6];
	__u8 tunnel;
	__u8 protocol;
	/* 4 or 6. */
	__u8 family;
	/* 1 if the outer addresses are those of a peer. */
	__u8 peer;
};

union key {
	struct flow flow;
	__u64 words[KEY_WORDS];
};

/* Where the frames of a flow go. */
struct target {
	__u32 cpu;
	/* Its place in `entries`. */
	__u32 counter;
};

struct count {
	__u64 frames;
	__u64 bytes;
};

/* What became of a frame. */
enum outcome {
	/* By an entry, by its hash. */
	MATCHED,
	SPREAD,
	/* The others go on as if there were no program. First those without an entry, and without CPUs for such. */
	UNMATCHED,
	/* A CPU that is off. */
	NO_TARGET,
	FRAGMENT,
	/* The frame ends within its headers. */
	TRUNCATED,
	/* Headers that are not IP, or break their own rules. */
	UNKNOWN,
	OUTCOMES,
};

/* All of a table but its entries. It is never changed: another one takes its place. */
struct settings {
	/* In order; their field `mask` is their number. */
	union key masks[MASKS];
	/* Of the hash of unmatched flows. */
	__u64 seed;
	/* How many there are. */
	__u32 masked;
	/* Not 0 if there are exact entries. */
	__u32 exact;
	/* Not 0 if there are CPUs for unmatched flows. */
	__u32 spread;
	__u32 vxlan_port;
	/* Not 0 if there are peers. */
	__u32 peers;
	__u32 zero;
	/* The CPU of each part of the unmatched flows. */
	__u32 places[PLACES];
};
