// SPDX-License-Identifier: GPL-2.0
/*
 * Receiving: a hook ahead of everything else in the network stack takes our
 * datagrams out of packets and puts them into their banks.
 *
 * Taken are DATA datagrams of the configured peer, port and session alone. All
 * other packets go on untouched, to the socket on the same port among others.
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/udp.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include "leap_rx.h"

/* Whether a GSO packet is one of UDP datagrams (USO, GRO) side by side. */
static bool leap_is_divisible(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = skb_shinfo(skb);

	return (shared->gso_type & SKB_GSO_UDP_L4) &&
	       shared->gso_size > sizeof(struct leap_datagram);
}

/* Length of each datagram in a packet; the last may be shorter. */
static u32 leap_step(const struct sk_buff *skb, u32 at)
{
	if (skb_is_gso(skb) && leap_is_divisible(skb))
		return skb_shinfo(skb)->gso_size;
	return skb->len - at;
}

/* A datagram's header if it is DATA of our session, perhaps in memory. */
static const struct leap_datagram *
leap_our_header(const struct leap_source *source, const struct sk_buff *skb,
		u32 at, u32 bytes, struct leap_datagram *memory)
{
	const struct leap_datagram *header;

	if (bytes < sizeof(*header))
		return NULL;
	header = skb_header_pointer(skb, at, sizeof(*header), memory);
	if (!header || !leap_is_data(header) ||
	    le64_to_cpu(header->session) != source->peer.session)
		return NULL;
	return header;
}

/* Checks a packet's UDP length, checksum and GSO kind; counts what fails. */
static bool leap_check_udp(struct leap_port *port, struct sk_buff *skb, int udp,
			   const struct udphdr *header, u8 family)
{
	if (ntohs(header->len) != skb->len - udp) {
		leap_count(port, rx_bad_length, 1);
		return false;
	}
	if ((header->check || family == AF_INET6) &&
	    nf_checksum(skb, NF_INET_PRE_ROUTING, udp, IPPROTO_UDP, family)) {
		leap_count(port, rx_bad_checksum, 1);
		return false;
	}
	if (!skb_is_gso(skb))
		return true;
	if (!leap_is_divisible(skb)) {
		leap_count(port, rx_gso_dropped, 1);
		return false;
	}
	leap_count(port, rx_gso, 1);
	return true;
}

/*
 * Stores what is ours in a packet from our peer. GRO may have merged it with
 * other datagrams of the peer: then the packet goes on to the socket, for which
 * ours are duplicates. Returns whether all was ours: the packet is consumed.
 */
static bool leap_take_packet(struct leap_port *port,
			     const struct leap_source *source,
			     struct sk_buff *skb, int udp, u8 family)
{
	bool has_ours = false, has_others = false, is_sound = false;
	u32 at = udp + sizeof(struct udphdr), step, bytes;
	struct leap_payload payload = { .skb = skb };
	const struct leap_datagram *datagram;
	struct leap_datagram datagram_memory;
	const struct udphdr *header;
	struct udphdr memory;

	header = skb_header_pointer(skb, udp, sizeof(memory), &memory);
	if (!header || header->source != source->peer.from.port ||
	    header->dest != port->local.port)
		return false;
	step = leap_step(skb, at);
	for (; at < skb->len; at += step) {
		bytes = min(step, skb->len - at);
		datagram = leap_our_header(source, skb, at, bytes,
					   &datagram_memory);
		if (!datagram) {
			has_others = true;
			continue;
		}
		if (!has_ours)
			is_sound = leap_check_udp(port, skb, udp, header,
						  family);
		has_ours = true;
		payload.offset = at + sizeof(*datagram);
		if (is_sound)
			leap_banks_receive(port, datagram, bytes, &payload);
	}
	if (!has_ours)
		return false;
#ifdef CONFIG_NET_RX_BUSY_POLL
	WRITE_ONCE(port->napi_id, skb->napi_id);
#endif
	if (has_others)
		return false;
	/* In a softirq, NAPI keeps the skb for the next packet. */
	napi_consume_skb(skb, in_serving_softirq());
	return true;
}

static bool leap_is_local(const struct leap_port *port, const void *addr,
			  size_t bytes)
{
	return port->is_anywhere || !memcmp(addr, port->local.addr, bytes);
}

/* Fragments go on, to be reassembled: most have no UDP header. */
static unsigned int leap_hook_ipv4(void *priv, struct sk_buff *skb,
				   const struct nf_hook_state *state)
{
	struct leap_port *port = priv;
	const struct leap_source *source = rcu_dereference(port->source);
	const struct iphdr *ip = ip_hdr(skb);

	if (!source || source->peer.from.family != AF_INET ||
	    skb->pkt_type != PACKET_HOST || ip->protocol != IPPROTO_UDP ||
	    ip_is_fragment(ip) ||
	    memcmp(&ip->saddr, source->peer.from.addr, sizeof(ip->saddr)) ||
	    !leap_is_local(port, &ip->daddr, sizeof(ip->daddr)))
		return NF_ACCEPT;
	if (!leap_take_packet(port, source, skb, skb_network_offset(skb) +
			      ip_hdrlen(skb), AF_INET))
		return NF_ACCEPT;
	return NF_STOLEN;
}

/* Packets with extension headers, fragments among them, go on. */
static unsigned int leap_hook_ipv6(void *priv, struct sk_buff *skb,
				   const struct nf_hook_state *state)
{
	struct leap_port *port = priv;
	const struct leap_source *source = rcu_dereference(port->source);
	const struct ipv6hdr *ip = ipv6_hdr(skb);

	if (!source || source->peer.from.family != AF_INET6 ||
	    skb->pkt_type != PACKET_HOST || ip->nexthdr != IPPROTO_UDP ||
	    memcmp(&ip->saddr, source->peer.from.addr, sizeof(ip->saddr)) ||
	    !leap_is_local(port, &ip->daddr, sizeof(ip->daddr)))
		return NF_ACCEPT;
	if (source->peer.from.scope &&
	    source->peer.from.scope != skb->dev->ifindex)
		return NF_ACCEPT;
	if (!leap_take_packet(port, source, skb, skb_network_offset(skb) +
			      sizeof(*ip), AF_INET6))
		return NF_ACCEPT;
	return NF_STOLEN;
}

static const struct nf_hook_ops leap_hooks[2] = {
	{
		.hook = leap_hook_ipv4,
		.pf = NFPROTO_IPV4,
		.hooknum = NF_INET_PRE_ROUTING,
		.priority = NF_IP_PRI_FIRST,
	},
	{
		.hook = leap_hook_ipv6,
		.pf = NFPROTO_IPV6,
		.hooknum = NF_INET_PRE_ROUTING,
		.priority = NF_IP6_PRI_FIRST,
	},
};

/**
 * leap_rx_init() - makes what an opener receives with
 * @port: the opener
 *
 * Return: 0 or -ENOMEM.
 */
int leap_rx_init(struct leap_port *port)
{
	memcpy(port->hooks, leap_hooks, sizeof(leap_hooks));
	port->hooks[0].priv = port;
	port->hooks[1].priv = port;
	return leap_banks_init(port);
}

/**
 * leap_rx_exit() - stops receiving and frees the banks
 * @port: the opener, whose file is closed
 */
void leap_rx_exit(struct leap_port *port)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(port->hooks); i++) {
		if (port->is_hooked[i])
			nf_unregister_net_hook(port->net, &port->hooks[i]);
	}
	/* Other processors may be in a hook still. */
	if (port->is_hooked[0] || port->is_hooked[1])
		synchronize_net();
	kfree(rcu_dereference_protected(port->source, true));
	leap_banks_exit(port);
}

static int leap_hook_up(struct leap_port *port, u16 family)
{
	u32 i = family == AF_INET6;
	int err;

	if (port->is_hooked[i])
		return 0;
	err = nf_register_net_hook(port->net, &port->hooks[i]);
	port->is_hooked[i] = !err;
	return err;
}

/* Makes a source, and registers the hook of its family. */
static struct leap_source *leap_source_make(struct leap_port *port,
					    const struct leap_peer *peer)
{
	struct leap_source *source = kzalloc(sizeof(*source), GFP_KERNEL);
	int err;

	if (!source)
		return ERR_PTR(-ENOMEM);
	source->peer = *peer;
	err = leap_hook_up(port, peer->from.family);
	if (err) {
		kfree(source);
		return ERR_PTR(err);
	}
	return source;
}

static struct leap_source *leap_source_now(struct leap_port *port)
{
	return rcu_dereference_protected(port->source,
					 lockdep_is_held(&port->config));
}

static void leap_source_change(struct leap_port *port,
			       struct leap_source *source)
{
	struct leap_source *old = leap_source_now(port);

	rcu_assign_pointer(port->source, source);
	if (old)
		kfree_rcu(old, rcu);
}

/**
 * leap_rx_set_peer() - names the peer to receive from
 * @port: the opener; its config lock is held
 * @peer: the peer, whose endpoint is valid; session 0 for none
 *
 * The banks go first: a hook that still sees the old peer finds them reset to
 * another session, and stores nothing.
 *
 * Return: 0 or a negative error.
 */
int leap_rx_set_peer(struct leap_port *port, const struct leap_peer *peer)
{
	struct leap_source *source = NULL;

	if (peer->session)
		source = leap_source_make(port, peer);
	if (IS_ERR(source))
		return PTR_ERR(source);
	leap_banks_reset(port, peer->session, peer->first_seq);
	leap_source_change(port, source);
	return 0;
}

/**
 * leap_rx_move_peer() - names another address of the peer
 * @port: the opener; its config lock is held
 * @peer: the peer, whose endpoint is valid, in the session that is received
 *
 * Return: 0 or a negative error, -ENOTCONN if there is no such session.
 */
int leap_rx_move_peer(struct leap_port *port, const struct leap_peer *peer)
{
	const struct leap_source *old = leap_source_now(port);
	struct leap_source *source;

	if (!old || old->peer.session != peer->session)
		return -ENOTCONN;
	source = leap_source_make(port, peer);
	if (IS_ERR(source))
		return PTR_ERR(source);
	leap_source_change(port, source);
	return 0;
}

/**
 * leap_rx_take() - takes a datagram that came another way
 * @port: the opener; its config lock is held
 * @came: where it lies
 *
 * Return: 0 or a negative error, -ENOTCONN if it is not of the session. A
 * malformed one is counted, as if it came from the network.
 */
int leap_rx_take(struct leap_port *port, const struct leap_came *came)
{
	const struct leap_source *source = leap_source_now(port);
	struct leap_datagram *datagram;
	struct leap_payload payload = {};
	int err = 0;

	if (came->reserved || came->bytes < sizeof(*datagram) ||
	    came->bytes > sizeof(*datagram) + LEAP_SLOT_BYTES)
		return -EINVAL;
	datagram = memdup_user(u64_to_user_ptr(came->address), came->bytes);
	if (IS_ERR(datagram))
		return PTR_ERR(datagram);
	payload.memory = datagram + 1;
	if (source && leap_is_data(datagram) &&
	    le64_to_cpu(datagram->session) == source->peer.session)
		leap_banks_receive(port, datagram, came->bytes, &payload);
	else
		err = -ENOTCONN;
	kfree(datagram);
	return err;
}

/**
 * leap_rx_source() - says who sent what is in a bank
 * @port: the opener
 * @src: the bank, then its source
 *
 * Return: 0, -EINVAL, or -ENODATA if the bank is free.
 */
int leap_rx_source(struct leap_port *port, struct leap_bank_src *src)
{
	const struct leap_source *source;
	struct leap_rx_bank *bank;
	int err = -ENODATA;

	if (src->bank >= LEAP_BANKS)
		return -EINVAL;
	bank = &port->banks[src->bank];
	rcu_read_lock();
	source = rcu_dereference(port->source);
	spin_lock_bh(&bank->lock);
	if (source && source->peer.session == bank->bank.session &&
	    bank->bank.state != LEAP_BANK_FREE) {
		src->seq = bank->bank.seq;
		src->session = bank->bank.session;
		src->from = source->peer.from;
		err = 0;
	}
	spin_unlock_bh(&bank->lock);
	rcu_read_unlock();
	return err;
}
