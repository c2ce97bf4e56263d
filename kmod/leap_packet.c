// SPDX-License-Identifier: GPL-2.0
/*
 * Making packets. Every datagram is a finished skb. Those of one call are
 * linked by a frag_list (SKB_GSO_FRAGLIST): the stack handles the list as one
 * packet and unlinks it before the device, with nothing copied or allocated.
 *
 * Payload: frags that refer to the slot's pages, if the device does
 * scatter-gather and the UDP checksum; else bytes that are copied and summed in
 * one go. Heads: carved from a pool of pages that is used again.
 */
#include <linux/gfp.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/mm.h>
#include <linux/netdevice.h>
#include <net/checksum.h>
#include <net/ip6_checksum.h>
#include "leap_packet.h"

#ifdef LEAP_HAVE_SKBFL_SHARED_FRAG
#define leap_set_shared(skb) (skb_shinfo(skb)->flags |= SKBFL_SHARED_FRAG)
#else
#define leap_set_shared(skb) (skb_shinfo(skb)->tx_flags |= SKBTX_SHARED_FRAG)
#endif

#ifdef LEAP_HAVE_NAPI_BUILD_SKB
#define leap_build_skb	napi_build_skb
#else
#define leap_build_skb	build_skb
#endif

/* Datagrams in a chain: a packet is shorter than 64 KiB. */
#define LEAP_CHAIN	45

/* Keeps a page of the pool if no skb refers to it, else replaces it. */
static bool leap_pool_renew(struct page **page)
{
	if (*page && page_count(*page) == 1) {
		/* The network's reads of it come before our next writes. */
		smp_mb();
		return true;
	}
	if (*page)
		put_page(*page);
	*page = alloc_page(GFP_ATOMIC | __GFP_NOWARN);
	return *page;
}

/* Carves at most a page, with a reference to it; NULL without memory. */
static void *leap_pool_take(struct leap_pool *pool, u32 bytes)
{
	struct page *page = pool->pages[pool->index];
	void *memory;

	if (!page || pool->used + bytes > PAGE_SIZE) {
		pool->index = (pool->index + 1) % LEAP_POOL_PAGES;
		pool->used = 0;
		if (!leap_pool_renew(&pool->pages[pool->index]))
			return NULL;
		page = pool->pages[pool->index];
	}
	memory = page_address(page) + pool->used;
	pool->used += bytes;
	get_page(page);
	return memory;
}

/**
 * leap_pool_exit() - gives a pool back; packets on their way keep their pages
 * @pool: the pool
 */
void leap_pool_exit(struct leap_pool *pool)
{
	size_t i;

	for (i = 0; i < LEAP_POOL_PAGES; i++) {
		if (pool->pages[i])
			put_page(pool->pages[i]);
	}
}

/**
 * leap_survey() - finds out how packets are made for a route
 * @route: the route, with its dst; room, chain_max, is_gathering are filled in
 * @family: of the packets
 *
 * A device with NETIF_F_FRAGLIST (a bridge, a VLAN, a tunnel) passes chains on
 * to another device, which may need more headroom or compute no checksums. Then
 * payload is copied and packets go one by one. The loopback device has the
 * feature too, but nothing below it.
 */
void leap_survey(struct leap_route *route, u16 family)
{
	const struct net_device *dev = route->dst->dev;
	netdev_features_t checksums = NETIF_F_HW_CSUM;
	bool is_last = !route->dst->lwtstate &&
		       (!(dev->features & NETIF_F_FRAGLIST) ||
			(dev->flags & IFF_LOOPBACK));

	checksums |= family == AF_INET6 ? NETIF_F_IPV6_CSUM : NETIF_F_IP_CSUM;
	route->is_gathering = is_last && (dev->features & NETIF_F_SG) &&
			      (dev->features & checksums);
	route->chain_max = is_last ? LEAP_CHAIN : 1;
	/* At least the headroom that GRO leaves in its own frag_lists. */
	route->room = max_t(u32, LL_RESERVED_SPACE(dev), NET_SKB_PAD) +
		      leap_ip_bytes(family);
}

static void leap_fill_header(struct leap_port *port,
			     struct leap_datagram *header,
			     const struct leap_send *send, u32 chunk)
{
	const struct leap_bank_meta *meta =
		page_address(leap_slot_page(port, send->slot, 0));
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

static void leap_refer(struct sk_buff *skb, struct page *page, u32 offset,
		       u32 bytes)
{
	get_page(page);
	skb_fill_page_desc(skb, skb_shinfo(skb)->nr_frags, page, offset,
			   bytes);
	skb->len += bytes;
	skb->data_len += bytes;
	skb->truesize += bytes;
}

static void leap_copy(struct sk_buff *skb, struct page *page, u32 offset,
		      u32 bytes)
{
	u32 at = skb->len;
	void *to = skb_put(skb, bytes);
	__wsum sum = csum_partial_copy_nocheck(page_address(page) + offset, to,
					       bytes);

	skb->csum = csum_block_add(skb->csum, sum, at);
}

/* Appends a chunk, which lies in one page or in two. */
static void leap_put_chunk(struct leap_port *port, struct sk_buff *skb,
			   const struct leap_send *send, u32 chunk, u32 bytes)
{
	void (*put)(struct sk_buff *skb, struct page *page, u32 offset,
		    u32 bytes) = leap_refer;
	u32 offset = LEAP_META_BYTES + chunk * LEAP_SLOT_BYTES;
	u32 part = min_t(u32, bytes, PAGE_SIZE - offset % PAGE_SIZE);

	if (skb->ip_summed == CHECKSUM_UNNECESSARY) {
		skb->csum = csum_partial(skb->data, skb->len, 0);
		put = leap_copy;
	} else {
		leap_set_shared(skb);
	}
	put(skb, leap_slot_page(port, send->slot, offset), offset % PAGE_SIZE,
	    part);
	if (part < bytes)
		put(skb, leap_slot_page(port, send->slot, offset + part), 0,
		    bytes - part);
}

/* The UDP checksum, or what the device needs to compute it. */
static void leap_put_checksum(const struct leap_port *port,
			      const struct leap_route *route,
			      struct sk_buff *skb)
{
	bool is_partial = skb->ip_summed == CHECKSUM_PARTIAL;
	struct udphdr *udp = udp_hdr(skb);
	__wsum sum = is_partial ? 0 : skb->csum;

	if (port->dest.to.family == AF_INET6)
		udp->check = csum_ipv6_magic(&route->saddr, &route->daddr,
					     skb->len, IPPROTO_UDP, sum);
	else
		udp->check = csum_tcpudp_magic(route->saddr.s6_addr32[0],
					       route->daddr.s6_addr32[0],
					       skb->len, IPPROTO_UDP, sum);
	if (is_partial) {
		udp->check = ~udp->check;
		skb->csum_start = skb_transport_header(skb) - skb->head;
		skb->csum_offset = offsetof(struct udphdr, check);
	} else if (!udp->check) {
		udp->check = CSUM_MANGLED_0;
	}
}

static void leap_put_ipv4(struct sk_buff *skb, const struct leap_route *route)
{
	struct iphdr *ip = skb_push(skb, sizeof(*ip));

	memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->frag_off = htons(IP_DF);
	ip->ttl = route->hop_limit;
	ip->protocol = IPPROTO_UDP;
	memcpy(&ip->saddr, &route->saddr, sizeof(ip->saddr));
	memcpy(&ip->daddr, &route->daddr, sizeof(ip->daddr));
	skb->protocol = htons(ETH_P_IP);
}

static void leap_put_ipv6(struct sk_buff *skb, const struct leap_route *route)
{
	u32 bytes = skb->len;
	struct ipv6hdr *ip = skb_push(skb, sizeof(*ip));

	memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = htons(bytes);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = route->hop_limit;
	ip->saddr = route->saddr;
	ip->daddr = route->daddr;
	skb->protocol = htons(ETH_P_IPV6);
}

/* An empty skb, with headroom for the headers of IP and of the device. */
static struct sk_buff *leap_start(struct leap_port *port,
				  const struct leap_route *route, u32 bytes)
{
	u32 size = SKB_DATA_ALIGN(route->room + bytes) +
		   SKB_DATA_ALIGN(sizeof(struct skb_shared_info));
	struct sk_buff *skb;
	void *memory;

	if (size > PAGE_SIZE)
		return NULL;
	memory = leap_pool_take(&port->pool, size);
	if (!memory)
		return NULL;
	skb = leap_build_skb(memory, size);
	if (!skb) {
		skb_free_frag(memory);
		return NULL;
	}
	skb_reserve(skb, route->room);
	skb_reset_transport_header(skb);
	return skb;
}

/* One datagram, whole; NULL without memory. */
static struct sk_buff *leap_datagram(struct leap_port *port,
				     const struct leap_route *route,
				     const struct leap_send *send, u32 chunk)
{
	u32 bytes = leap_chunk_bytes(send->n_chunks, send->frame_bytes, chunk);
	struct sk_buff *skb;
	struct udphdr *udp;

	skb = leap_start(port, route,
			 LEAP_UDP_BYTES + (route->is_gathering ? 0 : bytes));
	if (!skb)
		return NULL;
	skb->ip_summed = route->is_gathering ? CHECKSUM_PARTIAL :
					       CHECKSUM_UNNECESSARY;
	udp = skb_put(skb, sizeof(*udp));
	udp->source = port->local.port;
	udp->dest = port->dest.to.port;
	udp->len = htons(LEAP_UDP_BYTES + bytes);
	udp->check = 0;
	leap_fill_header(port, skb_put(skb, sizeof(struct leap_datagram)), send,
			 chunk);
	leap_put_chunk(port, skb, send, chunk, bytes);
	leap_put_checksum(port, route, skb);
	if (port->dest.to.family == AF_INET6)
		leap_put_ipv6(skb, route);
	else
		leap_put_ipv4(skb, route);
	skb_reset_network_header(skb);
	return skb;
}

/* Appends a datagram to a chain, in which only the last may be shorter. */
static void leap_chain(struct sk_buff *first, struct sk_buff **end,
		       struct sk_buff *skb)
{
	struct skb_shared_info *shared = skb_shinfo(first);

	/* In a frag_list, all but the first begin behind the UDP header. */
	skb_pull(skb, skb_transport_offset(skb) + sizeof(struct udphdr));
	*end = skb;
	first->len += skb->len;
	first->data_len += skb->len;
	first->truesize += skb->truesize;
	shared->gso_type = SKB_GSO_UDP_L4 | SKB_GSO_FRAGLIST;
	shared->gso_size = LEAP_FULL_BYTES;
	shared->gso_segs = max_t(u32, shared->gso_segs, 1) + 1;
}

/**
 * leap_pack() - makes a packet of the next chunks that are asked for
 * @port: the opener; its config lock is held, and softirqs are off
 * @route: the route to the destination
 * @send: the chunks
 * @chunk: the first to look at; out: the one behind the last that is packed
 *
 * Return: the packet, or NULL without memory. ip_local_out() completes the IP
 * header.
 */
struct sk_buff *leap_pack(struct leap_port *port,
			  const struct leap_route *route,
			  const struct leap_send *send, u32 *chunk)
{
	u32 ip_bytes = leap_ip_bytes(port->dest.to.family), n = 0;
	struct sk_buff *first = NULL, **end = NULL, *skb;

	for (; *chunk < send->n_chunks && n < route->chain_max; (*chunk)++) {
		if (!leap_is_asked(send, *chunk))
			continue;
		skb = leap_datagram(port, route, send, *chunk);
		if (!skb)
			break;
		n++;
		if (first) {
			leap_chain(first, end, skb);
			end = &skb->next;
		} else {
			first = skb;
			end = &skb_shinfo(skb)->frag_list;
		}
	}
	if (!first)
		return NULL;
	/* The length of all; unlinking sets each datagram's own. */
	udp_hdr(first)->len = htons(first->len - ip_bytes);
	leap_count(port, tx_bytes, first->len - ip_bytes -
				   sizeof(struct udphdr) -
				   n * sizeof(struct leap_datagram));
	skb_dst_set(first, dst_clone(route->dst));
	return first;
}
