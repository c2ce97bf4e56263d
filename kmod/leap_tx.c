// SPDX-License-Identifier: GPL-2.0
/*
 * Sending: a route for each call, packets along it, and what the network took.
 *
 * Payload is not copied before the device reads it out of the slot's pages, if
 * the device can do that (LEAP_DEST_ONE_COPY says when not).
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/route.h>
#include "leap_packet.h"

/**
 * leap_tx_init() - makes what an opener sends from
 * @port: the opener
 *
 * Return: 0 or -ENOMEM.
 */
int leap_tx_init(struct leap_port *port)
{
	return leap_slots_init(port);
}

/**
 * leap_tx_exit() - frees it; packets on their way keep their pages
 * @port: the opener
 */
void leap_tx_exit(struct leap_port *port)
{
	leap_slots_exit(port);
	leap_pool_exit(&port->pool);
}

/**
 * leap_tx_busy() - which slots the network still reads from
 * @port: the opener; its config lock is held
 *
 * Return: a bit for each slot.
 */
u64 leap_tx_busy(struct leap_port *port)
{
	u64 busy = 0;
	u32 i;

	for (i = 0; i < LEAP_BANKS; i++)
		busy |= (u64)!leap_slot_reclaim(port, i) << i;
	return busy;
}

static int leap_route_ipv4(struct leap_port *port, const struct leap_dest *dest,
			   struct leap_route *route)
{
	struct flowi4 flow = {
		.flowi4_proto = IPPROTO_UDP,
		.fl4_sport = port->local.port,
		.fl4_dport = dest->to.port,
	};
	struct rtable *table;

	memcpy(&flow.daddr, dest->to.addr, sizeof(flow.daddr));
	if (port->local.family == AF_INET)
		memcpy(&flow.saddr, port->local.addr, sizeof(flow.saddr));
	table = ip_route_output_key(port->net, &flow);
	if (IS_ERR(table))
		return PTR_ERR(table);
	route->dst = &table->dst;
	memcpy(&route->saddr, &flow.saddr, sizeof(flow.saddr));
	memcpy(&route->daddr, &flow.daddr, sizeof(flow.daddr));
	route->hop_limit = ip4_dst_hoplimit(route->dst);
	return 0;
}

#if IS_ENABLED(CONFIG_IPV6)
static int leap_route_ipv6(struct leap_port *port, const struct leap_dest *dest,
			   struct leap_route *route)
{
	struct flowi6 flow = {
		.flowi6_proto = IPPROTO_UDP,
		.flowi6_oif = dest->to.scope,
		.fl6_sport = port->local.port,
		.fl6_dport = dest->to.port,
	};
	struct dst_entry *dst;

	memcpy(&flow.daddr, dest->to.addr, sizeof(flow.daddr));
	if (port->local.family == AF_INET6)
		memcpy(&flow.saddr, port->local.addr, sizeof(flow.saddr));
	dst = ip6_dst_lookup_flow(port->net, NULL, &flow, NULL);
	if (IS_ERR(dst))
		return PTR_ERR(dst);
	route->dst = dst;
	route->saddr = flow.saddr;
	route->daddr = flow.daddr;
	route->hop_limit = ip6_dst_hoplimit(dst);
	return 0;
}
#else
static int leap_route_ipv6(struct leap_port *port, const struct leap_dest *dest,
			   struct leap_route *route)
{
	return -EAFNOSUPPORT;
}
#endif

static int leap_route_to(struct leap_port *port, const struct leap_dest *dest,
			 struct leap_route *route)
{
	u16 family = dest->to.family;
	int err;

	if (family == AF_INET6)
		err = leap_route_ipv6(port, dest, route);
	else
		err = leap_route_ipv4(port, dest, route);
	if (err)
		return err;
	leap_survey(route, family);
	return 0;
}

/* Whether the route's MTU takes a datagram with so many bytes of payload. */
static bool leap_fits_mtu(const struct leap_route *route, u16 family, u32 bytes)
{
	return dst_mtu(route->dst) >= leap_ip_bytes(family) + LEAP_UDP_BYTES +
				      bytes;
}

/**
 * leap_tx_set_dest() - names whom to send to
 * @port: the opener; its config lock is held
 * @dest: a valid endpoint and a session; filled in: flags and MTU of the route
 *
 * Return: 0 or a negative error, -EMSGSIZE if a full datagram does not pass.
 */
int leap_tx_set_dest(struct leap_port *port, struct leap_dest *dest)
{
	struct leap_route route;
	bool takes_full;
	int err;

	err = leap_route_to(port, dest, &route);
	if (err)
		return err;
	takes_full = leap_fits_mtu(&route, dest->to.family, LEAP_SLOT_BYTES);
	dest->mtu = dst_mtu(route.dst);
	dest->flags = route.is_gathering ? 0 : LEAP_DEST_ONE_COPY;
	dst_release(route.dst);
	if (!takes_full)
		return -EMSGSIZE;
	port->dest = *dest;
	port->has_dest = true;
	return 0;
}

/* Hands a packet to the network. Returns how many datagrams it took. */
static u32 leap_transmit(struct leap_port *port, struct sk_buff *skb)
{
	u32 n = max_t(u32, skb_shinfo(skb)->gso_segs, 1);
	int err;

#if IS_ENABLED(CONFIG_IPV6)
	if (port->dest.to.family == AF_INET6)
		err = ip6_local_out(port->net, NULL, skb);
	else
#endif
		err = ip_local_out(port->net, NULL, skb);
	if (!net_xmit_eval(err))
		return n;
	leap_count(port, tx_failed, n);
	return 0;
}

static int leap_send_chunks(struct leap_port *port,
			    const struct leap_route *route,
			    struct leap_send *send)
{
	struct sk_buff *skb;
	u32 chunk = 0;

	while (chunk < send->n_chunks) {
		local_bh_disable();
		skb = leap_pack(port, route, send, &chunk);
		if (skb)
			send->sent += leap_transmit(port, skb);
		local_bh_enable();
		if (!skb && chunk < send->n_chunks)
			return -ENOMEM;
		cond_resched();
	}
	return 0;
}

/* Bytes of the longest chunk that is asked for: all are full but the last. */
static u32 leap_longest(const struct leap_send *send)
{
	u32 chunk = 0;

	while (chunk + 1 < send->n_chunks && !leap_is_asked(send, chunk))
		chunk++;
	return leap_chunk_bytes(send->n_chunks, send->frame_bytes, chunk);
}

/**
 * leap_tx_send() - sends chunks of a slot
 * @port: the opener; its config lock is held
 * @send: which; filled in: how many were sent, and @watch_is_busy
 *
 * Return: 0 or a negative error, -EMSGSIZE if the path takes no datagrams of
 * their length. A full queue is no error: chunks are then missing from the
 * count.
 */
int leap_tx_send(struct leap_port *port, struct leap_send *send)
{
	struct leap_route route;
	int err;

	if (!port->has_dest)
		return -ENOTCONN;
	if (send->slot >= LEAP_BANKS || send->watch >= LEAP_BANKS ||
	    send->reserved || !leap_frame_fits(send->n_chunks,
					       send->frame_bytes))
		return -EINVAL;
	err = leap_route_to(port, &port->dest, &route);
	if (err)
		return err;
	if (!leap_fits_mtu(&route, port->dest.to.family, leap_longest(send))) {
		dst_release(route.dst);
		return -EMSGSIZE;
	}
	send->sent = 0;
	leap_slot_lend(port, send->slot, LEAP_META_BYTES + send->frame_bytes);
	err = leap_send_chunks(port, &route, send);
	dst_release(route.dst);
	leap_count(port, tx_frames, 1);
	leap_count(port, tx_datagrams, send->sent);
	send->watch_is_busy = !leap_slot_reclaim(port, send->watch);
	return err;
}
