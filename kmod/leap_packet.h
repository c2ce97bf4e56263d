/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Packets and the slots they are made from, for leap_tx.c.
 */
#ifndef LEAP_PACKET_H
#define LEAP_PACKET_H

#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/dst.h>
#include "leap.h"

#define LEAP_UDP_BYTES	(sizeof(struct udphdr) + sizeof(struct leap_datagram))
#define LEAP_FULL_BYTES	(sizeof(struct leap_datagram) + LEAP_SLOT_BYTES)

/**
 * struct leap_route - a route to the peer, looked up for one call
 * @dst: the route, with a reference
 * @saddr: our address on it
 * @daddr: the peer's
 * @room: headroom for the headers of IP and of the device
 * @chain_max: datagrams that may be chained
 * @is_gathering: the device does scatter-gather and checksums: it reads payload
 *	from the slots; else payload is copied
 * @hop_limit: time to live
 */
struct leap_route {
	struct dst_entry *dst;
	struct in6_addr saddr;
	struct in6_addr daddr;
	u32 room;
	u32 chain_max;
	bool is_gathering;
	u8 hop_limit;
};

/* leap_slot.c */
int leap_slots_init(struct leap_port *port);
void leap_slots_exit(struct leap_port *port);
struct page *leap_slot_page(struct leap_port *port, u32 slot, u32 offset);
void leap_slot_lend(struct leap_port *port, u32 slot, u32 bytes);
bool leap_slot_reclaim(struct leap_port *port, u32 slot);

/* leap_packet.c */
void leap_survey(struct leap_route *route, u16 family);
struct sk_buff *leap_pack(struct leap_port *port,
			  const struct leap_route *route,
			  const struct leap_send *send, u32 *chunk);
void leap_pool_exit(struct leap_pool *pool);

/**
 * leap_is_asked() - whether a chunk is to be sent
 * @send: what is asked for
 * @chunk: index of the chunk
 *
 * Return: whether its bit is set.
 */
static inline bool leap_is_asked(const struct leap_send *send, u32 chunk)
{
	return send->bitmap[chunk / 64] >> chunk % 64 & 1;
}

/**
 * leap_ip_bytes() - length of the IP header
 * @family: AF_INET or AF_INET6
 *
 * Return: that length.
 */
static inline u32 leap_ip_bytes(u16 family)
{
	return family == AF_INET6 ? sizeof(struct ipv6hdr) :
				    sizeof(struct iphdr);
}

#endif
