// SPDX-License-Identifier: GPL-2.0
/*
 * Sending: packets whose headers are their own and whose payload is the slot's
 * pages, which nobody copies before the network device
 * reads them, if it can gather (LEAP_DEST_ONE_COPY says when it cannot).
 *
 * A page of a slot belongs to the module (one reference) and to every packet
 * that still needs it (one each): no references but its own means that the slot
 * may be written again. A packet's destructor would tell less, as loopback,
 * virtual pairs and some drivers call it before the data was read; and packets
 * may outlive the file and the module, which leaves no code to be called.
 */
#include <linux/gfp.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/mm.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/route.h>
#include <net/udp.h>
#include "leap.h"

/* Packets built before they are handed to the network together. */
#define LEAP_TX_BATCH	16

/*
 * Datagrams in a packet, which the network takes apart as late as it can. Each
 * but the first has a fragment for its header, and any two for its chunk.
 */
#define LEAP_TX_GATHER	6

#define LEAP_UDP_BYTES	(sizeof(struct udphdr) + sizeof(struct leap_datagram))
#define LEAP_FULL_BYTES	(sizeof(struct leap_datagram) + LEAP_SLOT_BYTES)

#ifdef LEAP_HAVE_SKBFL_SHARED_FRAG
#define leap_set_shared(skb) (skb_shinfo(skb)->flags |= SKBFL_SHARED_FRAG)
#else
#define leap_set_shared(skb) (skb_shinfo(skb)->tx_flags |= SKBTX_SHARED_FRAG)
#endif

/**
 * struct leap_route - a way to the peer, looked up for one call
 * @dst: the way, with a reference
 * @saddr: our address on it
 * @daddr: the peer's
 * @hop_limit: of IPv6
 */
struct leap_route {
	struct dst_entry *dst;
	struct in6_addr saddr;
	struct in6_addr daddr;
	u8 hop_limit;
};

/**
 * leap_tx_init() - makes the slots of an opener
 * @port: the opener
 *
 * Return: 0 or -ENOMEM.
 */
int leap_tx_init(struct leap_port *port)
{
	size_t i;

	port->tx_pages = kvcalloc(LEAP_TX_PAGES, sizeof(*port->tx_pages),
				  GFP_KERNEL);
	if (!port->tx_pages)
		return -ENOMEM;
	for (i = 0; i < LEAP_TX_PAGES; i++) {
		port->tx_pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!port->tx_pages[i]) {
			leap_tx_exit(port);
			return -ENOMEM;
		}
	}
	return 0;
}

/**
 * leap_tx_exit() - gives the slots back; packets on their way keep their pages
 * @port: the opener
 */
void leap_tx_exit(struct leap_port *port)
{
	size_t i;

	for (i = 0; i < LEAP_TX_PAGES && port->tx_pages[i]; i++)
		put_page(port->tx_pages[i]);
	kvfree(port->tx_pages);
}

static struct page *leap_slot_page(struct leap_port *port, u32 slot, u32 offset)
{
	return port->tx_pages[slot * LEAP_PAGES_PER_SLOT + offset / PAGE_SIZE];
}

static const struct leap_bank_meta *leap_slot_meta(struct leap_port *port,
						   u32 slot)
{
	return page_address(leap_slot_page(port, slot, 0));
}

static bool leap_slot_is_busy(struct leap_port *port, u32 slot)
{
	u32 i;

	for (i = 0; i < port->tx_used[slot]; i++) {
		if (page_count(leap_slot_page(port, slot, i * PAGE_SIZE)) > 1)
			return true;
	}
	/* What was read through the pages was read before they are written. */
	smp_mb();
	port->tx_used[slot] = 0;
	return false;
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
		busy |= (u64)leap_slot_is_busy(port, i) << i;
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
	if (dest->to.family == AF_INET6)
		return leap_route_ipv6(port, dest, route);
	return leap_route_ipv4(port, dest, route);
}

static size_t leap_ip_bytes(const struct leap_dest *dest)
{
	return dest->to.family == AF_INET6 ? sizeof(struct ipv6hdr) :
						sizeof(struct iphdr);
}

/**
 * leap_tx_set_dest() - names whom to send to
 * @port: the opener; its config lock is held
 * @dest: a valid endpoint and a session; flags and MTU of the way there
 *
 * Return: 0 or a negative error, -EMSGSIZE if a full datagram does not pass.
 */
int leap_tx_set_dest(struct leap_port *port, struct leap_dest *dest)
{
	struct leap_route route;
	int err;

	err = leap_route_to(port, dest, &route);
	if (err)
		return err;
	dest->mtu = dst_mtu(route.dst);
	dest->flags = route.dst->dev->features & NETIF_F_SG ?
		      0 : LEAP_DEST_ONE_COPY;
	dst_release(route.dst);
	if (dest->mtu < leap_ip_bytes(dest) + LEAP_UDP_BYTES + LEAP_SLOT_BYTES)
		return -EMSGSIZE;
	port->dest = *dest;
	port->has_dest = true;
	return 0;
}

static void leap_add_page(struct sk_buff *skb, struct page *page, u32 offset,
			  u32 length)
{
	get_page(page);
	skb_fill_page_desc(skb, skb_shinfo(skb)->nr_frags, page, offset,
			   length);
	skb->len += length;
	skb->data_len += length;
	skb->truesize += length;
}

/* Refers to the bytes of a chunk in its slot, which lie in one or two pages. */
static void leap_add_chunk(struct leap_port *port, struct sk_buff *skb,
			   u32 slot, u32 chunk, u32 bytes)
{
	u32 offset = LEAP_META_BYTES + chunk * LEAP_SLOT_BYTES;
	u32 part = min_t(u32, bytes, PAGE_SIZE - offset % PAGE_SIZE);

	leap_add_page(skb, leap_slot_page(port, slot, offset),
		      offset % PAGE_SIZE, part);
	if (part < bytes)
		leap_add_page(skb, leap_slot_page(port, slot, offset + part), 0,
			      bytes - part);
}

/*
 * The checksum is for the device, or for what takes the packet apart. For a
 * packet of several datagrams udp_set_csum() leaves this to its caller.
 */
static void leap_set_partial(struct sk_buff *skb)
{
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_transport_header(skb) - skb->head;
	skb->csum_offset = offsetof(struct udphdr, check);
}

static void leap_put_ipv4(struct sk_buff *skb, const struct leap_route *route)
{
	struct iphdr *ip = skb_push(skb, sizeof(*ip));

	skb_reset_network_header(skb);
	memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->frag_off = htons(IP_DF);
	ip->ttl = ip4_dst_hoplimit(route->dst);
	ip->protocol = IPPROTO_UDP;
	memcpy(&ip->saddr, &route->saddr, sizeof(ip->saddr));
	memcpy(&ip->daddr, &route->daddr, sizeof(ip->daddr));
	skb->protocol = htons(ETH_P_IP);
	udp_set_csum(false, skb, ip->saddr, ip->daddr,
		     skb->len - sizeof(*ip));
	leap_set_partial(skb);
}

#if IS_ENABLED(CONFIG_IPV6)
static void leap_put_ipv6(struct sk_buff *skb, const struct leap_route *route)
{
	struct ipv6hdr *ip;

	udp6_set_csum(false, skb, &route->saddr, &route->daddr, skb->len);
	leap_set_partial(skb);
	ip = skb_push(skb, sizeof(*ip));
	skb_reset_network_header(skb);
	memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = htons(skb->len - sizeof(*ip));
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = route->hop_limit;
	ip->saddr = route->saddr;
	ip->daddr = route->daddr;
	skb->protocol = htons(ETH_P_IPV6);
}
#else
static void leap_put_ipv6(struct sk_buff *skb, const struct leap_route *route)
{
}
#endif

static void leap_fill_header(struct leap_port *port,
			     struct leap_datagram *header,
			     const struct leap_send *send, u32 chunk)
{
	const struct leap_bank_meta *meta = leap_slot_meta(port, send->slot);
	u32 bytes = leap_chunk_bytes(send->n_chunks, send->frame_bytes, chunk);

	header->magic = cpu_to_le32(LEAP_MAGIC);
	header->version = LEAP_WIRE_VERSION;
	header->kind = LEAP_KIND_DATA;
	header->chunk = cpu_to_le16(chunk);
	header->session = cpu_to_le64(port->dest.session);
	header->seq = cpu_to_le32(send->seq);
	header->n_chunks = cpu_to_le16(send->n_chunks);
	header->payload_bytes = cpu_to_le16(bytes);
	header->frame_bytes = cpu_to_le32(send->frame_bytes);
	header->crc = cpu_to_le32(READ_ONCE(meta->crc[chunk]));
}

static bool leap_is_asked(const struct leap_send *send, u32 chunk)
{
	return send->bitmap[chunk / 64] >> chunk % 64 & 1;
}

/* A packet with room for its headers, and the first datagram's in it. */
static struct sk_buff *leap_start(struct leap_port *port,
				  const struct leap_route *route,
				  const struct leap_send *send, u32 chunk)
{
	u32 room = LL_RESERVED_SPACE(route->dst->dev) +
		   leap_ip_bytes(&port->dest);
	struct sk_buff *skb;
	struct udphdr *udp;

	skb = alloc_skb(room + LEAP_UDP_BYTES, GFP_KERNEL);
	if (!skb)
		return NULL;
	skb_reserve(skb, room);
	skb_reset_transport_header(skb);
	udp = skb_put(skb, sizeof(*udp));
	udp->source = port->local.port;
	udp->dest = port->dest.to.port;
	udp->check = 0;
	leap_fill_header(port, skb_put(skb, sizeof(struct leap_datagram)), send,
			 chunk);
	return skb;
}

/* All but the first datagram have their headers in the page of headers. */
static void leap_add_header(struct leap_port *port, struct sk_buff *skb,
			    struct page *headers, const struct leap_send *send,
			    u32 chunk)
{
	u32 offset = chunk * sizeof(struct leap_datagram);

	leap_fill_header(port, page_address(headers) + offset, send, chunk);
	leap_add_page(skb, headers, offset, sizeof(struct leap_datagram));
}

/* Puts UDP length, IP header and checksum to a packet of n datagrams. */
static void leap_finish(struct leap_port *port, const struct leap_route *route,
			struct sk_buff *skb, u32 n)
{
	udp_hdr(skb)->len = htons(skb->len);
	if (n > 1) {
		skb_shinfo(skb)->gso_type = SKB_GSO_UDP_L4;
		skb_shinfo(skb)->gso_size = LEAP_FULL_BYTES;
		skb_shinfo(skb)->gso_segs = n;
	}
	leap_set_shared(skb);
	if (port->dest.to.family == AF_INET6)
		leap_put_ipv6(skb, route);
	else
		leap_put_ipv4(skb, route);
	skb_dst_set(skb, dst_clone(route->dst));
}

/*
 * A packet of the next chunks that are asked for, from *chunk on, or NULL
 * without memory. A chunk that is not full is the frame's last, so the packet's.
 */
static struct sk_buff *leap_build(struct leap_port *port,
				  const struct leap_route *route,
				  struct page *headers,
				  const struct leap_send *send, u32 *chunk)
{
	struct sk_buff *skb = leap_start(port, route, send, *chunk);
	u32 bytes, n = 0;

	if (!skb)
		return NULL;
	for (; *chunk < send->n_chunks && n < LEAP_TX_GATHER; (*chunk)++) {
		if (!leap_is_asked(send, *chunk))
			continue;
		if (n++)
			leap_add_header(port, skb, headers, send, *chunk);
		bytes = leap_chunk_bytes(send->n_chunks, send->frame_bytes,
					 *chunk);
		leap_add_chunk(port, skb, send->slot, *chunk, bytes);
		leap_count(port, tx_bytes, bytes);
	}
	leap_finish(port, route, skb, n);
	return skb;
}

/* Hands packets to the network. Returns how many datagrams it took. */
static u32 leap_transmit(struct leap_port *port, struct sk_buff_head *batch)
{
	struct sk_buff *skb;
	u32 sent = 0, n;
	int err;

	local_bh_disable();
	while ((skb = __skb_dequeue(batch))) {
		n = max_t(u32, skb_shinfo(skb)->gso_segs, 1);
#if IS_ENABLED(CONFIG_IPV6)
		if (port->dest.to.family == AF_INET6)
			err = ip6_local_out(port->net, NULL, skb);
		else
#endif
			err = ip_local_out(port->net, NULL, skb);
		if (net_xmit_eval(err))
			leap_count(port, tx_failed, n);
		else
			sent += n;
	}
	local_bh_enable();
	return sent;
}

static int leap_send_chunks(struct leap_port *port,
			    const struct leap_route *route,
			    struct page *headers, struct leap_send *send)
{
	struct sk_buff_head batch;
	struct sk_buff *skb;
	u32 chunk = 0;
	int err = 0;

	__skb_queue_head_init(&batch);
	while (chunk < send->n_chunks) {
		if (!leap_is_asked(send, chunk)) {
			chunk++;
			continue;
		}
		skb = leap_build(port, route, headers, send, &chunk);
		if (!skb) {
			err = -ENOMEM;
			break;
		}
		__skb_queue_tail(&batch, skb);
		if (skb_queue_len(&batch) == LEAP_TX_BATCH) {
			send->sent += leap_transmit(port, &batch);
			cond_resched();
		}
	}
	send->sent += leap_transmit(port, &batch);
	return err;
}

/**
 * leap_tx_send() - sends chunks of a slot
 * @port: the opener; its config lock is held
 * @send: which, then how many were sent
 *
 * Return: 0 or a negative error. A full queue is no error: chunks are then
 * missing from the count.
 */
int leap_tx_send(struct leap_port *port, struct leap_send *send)
{
	struct leap_route route;
	struct page *headers;
	int err;

	if (!port->has_dest)
		return -ENOTCONN;
	if (send->slot >= LEAP_BANKS || send->watch >= LEAP_BANKS ||
	    send->reserved || !leap_frame_fits(send->n_chunks,
					       send->frame_bytes))
		return -EINVAL;
	headers = alloc_page(GFP_KERNEL);
	if (!headers)
		return -ENOMEM;
	err = leap_route_to(port, &port->dest, &route);
	if (err)
		goto err_headers;
	send->sent = 0;
	port->tx_used[send->slot] =
		max_t(u32, port->tx_used[send->slot],
		      DIV_ROUND_UP(LEAP_META_BYTES + send->frame_bytes,
				   PAGE_SIZE));
	err = leap_send_chunks(port, &route, headers, send);
	dst_release(route.dst);
	leap_count(port, tx_frames, 1);
	leap_count(port, tx_datagrams, send->sent);
	send->watch_is_busy = leap_slot_is_busy(port, send->watch);
err_headers:
	put_page(headers);
	return err;
}
