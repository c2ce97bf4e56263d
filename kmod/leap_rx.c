// SPDX-License-Identifier: GPL-2.0
/*
 * Receiving: a hook ahead of everything else in the network stack copies our
 * datagrams into their banks, once, and wakes a sleeper once for a frame.
 *
 * Taken are DATA datagrams of the configured peer, port and session alone. All
 * other packets go on untouched, to the socket on the same port among others.
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/ktime.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <linux/sched/signal.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/udp.h>
#include <linux/vmalloc.h>
#include <net/busy_poll.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include "leap.h"

static struct leap_bank_meta *leap_meta(struct leap_port *port, u32 index)
{
	return leap_bank_memory(port, index);
}

/* Tells user space the state. All that it may read then was written before. */
static void leap_publish_state(struct leap_bank_meta *meta, u32 state)
{
	/* Pairs with user space's load-acquire. */
	smp_store_release(&meta->state, state);
}

/* Tells user space what the bank waits for. */
static void leap_publish_free(struct leap_bank_meta *meta,
			      const struct leap_bank *bank)
{
	WRITE_ONCE(meta->seq, bank->seq);
	WRITE_ONCE(meta->session, bank->session);
	WRITE_ONCE(meta->bitmap[0], 0);
	WRITE_ONCE(meta->bitmap[1], 0);
	WRITE_ONCE(meta->conflicts, 0);
	leap_publish_state(meta, LEAP_BANK_FREE);
}

/*
 * Reads what user space did to a bank. Pairs with its store-release: what it
 * read from the bank, it read before the bank is written again. The caller
 * holds the bank's lock.
 */
static void leap_sync(struct leap_port *port, u32 index)
{
	struct leap_bank *bank = &port->banks[index].bank;
	struct leap_bank_meta *meta = leap_meta(port, index);
	u32 shared;

	/* Pairs with user space's store-release. */
	shared = smp_load_acquire(&meta->state);
	if (shared != LEAP_BANK_READY)
		clear_bit(index, port->ready);
	if (leap_bank_sync(bank, shared))
		leap_publish_free(meta, bank);
}

static void leap_count_refusal(struct leap_port *port,
			       enum leap_verdict verdict)
{
	switch (verdict) {
	case LEAP_DUPLICATE:
		leap_count(port, rx_duplicate, 1);
		break;
	case LEAP_AHEAD:
		leap_count(port, rx_ahead, 1);
		break;
	case LEAP_CONFLICT:
		leap_count(port, rx_conflict, 1);
		break;
	default:
		leap_count(port, rx_old, 1);
		break;
	}
}

/* Where the bytes of a chunk lie: in a packet, or in memory. */
struct leap_payload {
	const struct sk_buff *skb;
	u32 offset;
	const void *memory;
};

static int leap_copy_payload(const struct leap_payload *from, void *to,
			     u32 bytes)
{
	if (from->skb)
		return skb_copy_bits(from->skb, from->offset, to, bytes);
	memcpy(to, from->memory, bytes);
	return 0;
}

/*
 * Copies an accepted chunk to its slot. The caller holds the bank's lock.
 * Returns whether the frame is complete.
 */
static bool leap_store(struct leap_port *port, u32 index,
		       const struct leap_chunk *chunk,
		       const struct leap_payload *payload)
{
	struct leap_bank *bank = &port->banks[index].bank;
	struct leap_bank_meta *meta = leap_meta(port, index);
	void *slot = leap_bank_memory(port, index) + LEAP_META_BYTES +
		     chunk->chunk * LEAP_SLOT_BYTES;
	bool is_first = !bank->bitmap[0] && !bank->bitmap[1];
	bool is_ready;

	if (leap_copy_payload(payload, slot, chunk->bytes))
		return false;
	WRITE_ONCE(meta->crc[chunk->chunk], chunk->crc);
	if (is_first) {
		WRITE_ONCE(meta->n_chunks, chunk->n_chunks);
		WRITE_ONCE(meta->frame_bytes, chunk->frame_bytes);
		WRITE_ONCE(meta->first_ns, ktime_get_ns());
		leap_publish_state(meta, LEAP_BANK_FILLING);
	}
	is_ready = leap_bank_stored(bank, chunk->chunk);
	/* Pairs with user space's load-acquire: chunk and checksum are there. */
	smp_store_release(&meta->bitmap[chunk->chunk / 64],
			  bank->bitmap[chunk->chunk / 64]);
	leap_count(port, rx_datagrams, 1);
	leap_count(port, rx_bytes, chunk->bytes);
	if (is_ready) {
		WRITE_ONCE(meta->ready_ns, ktime_get_ns());
		leap_publish_state(meta, LEAP_BANK_READY);
		set_bit(index, port->ready);
		leap_count(port, rx_frames, 1);
	}
	return is_ready;
}

static void leap_wake(struct leap_port *port)
{
	if (!wq_has_sleeper(&port->wait))
		return;
	leap_count(port, wakeups, 1);
	wake_up_interruptible_poll(&port->wait, EPOLLIN | EPOLLRDNORM);
}

/*
 * One datagram of our session, of so many bytes with its header. Nothing in the
 * header is believed before leap_chunk_parse().
 */
static void leap_receive(struct leap_port *port,
			 const struct leap_datagram *header, u32 bytes,
			 const struct leap_payload *payload)
{
	enum leap_verdict verdict;
	struct leap_rx_bank *bank;
	struct leap_chunk chunk;
	bool is_ready = false;
	u32 index;

	if (!leap_chunk_parse(header, bytes - sizeof(*header), &chunk)) {
		leap_count(port, rx_malformed, 1);
		return;
	}
	index = chunk.seq % LEAP_BANKS;
	bank = &port->banks[index];
	spin_lock_bh(&bank->lock);
	leap_sync(port, index);
	verdict = leap_bank_offer(&bank->bank, &chunk);
	if (verdict == LEAP_STORE)
		is_ready = leap_store(port, index, &chunk, payload);
	else if (verdict == LEAP_CONFLICT)
		WRITE_ONCE(leap_meta(port, index)->conflicts,
			   leap_meta(port, index)->conflicts + 1);
	spin_unlock_bh(&bank->lock);
	if (verdict != LEAP_STORE)
		leap_count_refusal(port, verdict);
	if (is_ready)
		leap_wake(port);
}

/* Whether a packet of several datagrams is of a kind that is taken apart. */
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

/* A datagram's header, if it is DATA of our session; memory is for it. */
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

/* Whether a packet may be believed as far as UDP goes; counts it if not. */
static bool leap_is_sound(struct leap_port *port, struct sk_buff *skb, int udp,
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
 * Stores what is ours in a packet from our peer. What came close together may
 * be one packet, with other datagrams of the peer in it: then it goes on to the
 * socket, which ignores ours. Returns whether all was ours, and is gone.
 */
static bool leap_take(struct leap_port *port, const struct leap_source *source,
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
			is_sound = leap_is_sound(port, skb, udp, header,
						 family);
		has_ours = true;
		payload.offset = at + sizeof(*datagram);
		if (is_sound)
			leap_receive(port, datagram, bytes, &payload);
	}
	if (!has_ours)
		return false;
#ifdef CONFIG_NET_RX_BUSY_POLL
	WRITE_ONCE(port->napi_id, skb->napi_id);
#endif
	if (has_others)
		return false;
	/* In a softirq the memory of packets is kept for the next ones. */
	napi_consume_skb(skb, in_serving_softirq());
	return true;
}

static bool leap_is_local(const struct leap_port *port, const void *addr,
			  size_t bytes)
{
	return port->is_anywhere || !memcmp(addr, port->local.addr, bytes);
}

/* Fragments have no UDP header of their own; they go on, to be put together. */
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
	if (!leap_take(port, source, skb, skb_network_offset(skb) +
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
	if (!leap_take(port, source, skb, skb_network_offset(skb) +
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
 * leap_rx_init() - makes the banks of an opener
 * @port: the opener
 *
 * Return: 0 or -ENOMEM.
 */
int leap_rx_init(struct leap_port *port)
{
	u32 i;

	port->rx = vmalloc_user(LEAP_RX_BYTES);
	if (!port->rx)
		return -ENOMEM;
	memcpy(port->hooks, leap_hooks, sizeof(leap_hooks));
	port->hooks[0].priv = port;
	port->hooks[1].priv = port;
	for (i = 0; i < LEAP_BANKS; i++) {
		spin_lock_init(&port->banks[i].lock);
		leap_bank_reset(&port->banks[i].bank, i, 0, 0);
	}
	return 0;
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
	vfree(port->rx);
}

static void leap_reset_banks(struct leap_port *port,
			     const struct leap_peer *peer)
{
	u32 i;

	for (i = 0; i < LEAP_BANKS; i++) {
		struct leap_rx_bank *bank = &port->banks[i];

		spin_lock_bh(&bank->lock);
		leap_bank_reset(&bank->bank, i, peer->session, peer->first_seq);
		clear_bit(i, port->ready);
		leap_publish_free(leap_meta(port, i), &bank->bank);
		spin_unlock_bh(&bank->lock);
	}
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

/* A source for the hook of its family, which is registered. */
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
 * leap_rx_set_peer() - names whom to receive from
 * @port: the opener; its config lock is held
 * @peer: the peer, whose endpoint is valid; session 0 for nobody
 *
 * A hook that still sees the peer before finds banks of another session.
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
	leap_reset_banks(port, peer);
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
 * Return: 0 or a negative error, -ENOTCONN if it is not of the session. What
 * makes no sense is counted, as from the network.
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
		leap_receive(port, datagram, came->bytes, &payload);
	else
		err = -ENOTCONN;
	kfree(datagram);
	return err;
}

/* Whether nobody took a bank that became ready; if somebody did, remembers. */
static bool leap_is_untaken(struct leap_port *port, u32 index)
{
	struct leap_rx_bank *bank = &port->banks[index];

	if (READ_ONCE(leap_meta(port, index)->state) == LEAP_BANK_READY)
		return true;
	spin_lock_bh(&bank->lock);
	leap_sync(port, index);
	spin_unlock_bh(&bank->lock);
	return false;
}

/**
 * leap_rx_is_ready() - whether a bank is ready that nobody took
 * @port: the opener
 *
 * Return: what poll shall say.
 */
bool leap_rx_is_ready(struct leap_port *port)
{
	u32 i;

	for_each_set_bit(i, port->ready, LEAP_BANKS) {
		if (leap_is_untaken(port, i))
			return true;
	}
	return false;
}

/* Marks a bank as held if it is ready and waits to be taken. */
static bool leap_hold(struct leap_port *port, u32 index, u32 seq)
{
	struct leap_rx_bank *bank = &port->banks[index];
	bool is_taken;

	spin_lock_bh(&bank->lock);
	leap_sync(port, index);
	is_taken = bank->bank.state == LEAP_BANK_READY && bank->bank.seq == seq;
	if (is_taken) {
		bank->bank.state = LEAP_BANK_HELD;
		clear_bit(index, port->ready);
		leap_publish_state(leap_meta(port, index), LEAP_BANK_HELD);
	}
	spin_unlock_bh(&bank->lock);
	return is_taken;
}

/* Takes the ready bank with the oldest frame. */
static bool leap_take_ready(struct leap_port *port, struct leap_wait *wait)
{
	bool is_found = false;
	u32 i, seq;

	for_each_set_bit(i, port->ready, LEAP_BANKS) {
		seq = READ_ONCE(port->banks[i].bank.seq);
		if (!leap_is_untaken(port, i) ||
		    (is_found && !leap_seq_before(seq, wait->seq)))
			continue;
		is_found = true;
		wait->bank = i;
		wait->seq = seq;
	}
	return is_found && leap_hold(port, wait->bank, wait->seq);
}

#ifdef CONFIG_NET_RX_BUSY_POLL
struct leap_busy {
	struct leap_port *port;
	u64 end_ns;
};

static bool leap_busy_end(void *arg, unsigned long start)
{
	struct leap_busy *busy = arg;

	return leap_rx_is_ready(busy->port) || need_resched() ||
	       signal_pending(current) || ktime_get_ns() >= busy->end_ns;
}

/* Asks the network queue itself for packets: its interrupt may come late. */
static void leap_busy_poll(struct leap_port *port, u32 busy_us)
{
	unsigned int napi_id = READ_ONCE(port->napi_id);
	struct leap_busy busy = { .port = port };

	busy_us = min(busy_us, READ_ONCE(leap_busy_poll_max_us));
	if (!busy_us || napi_id < MIN_NAPI_ID)
		return;
	busy.end_ns = ktime_get_ns() + (u64)busy_us * NSEC_PER_USEC;
#ifdef LEAP_HAVE_BUSY_LOOP_BUDGET
	napi_busy_loop(napi_id, leap_busy_end, &busy, false, BUSY_POLL_BUDGET);
#else
	napi_busy_loop(napi_id, leap_busy_end, &busy);
#endif
}
#else
static void leap_busy_poll(struct leap_port *port, u32 busy_us)
{
}
#endif

/**
 * leap_rx_wait() - waits for a frame and takes it
 * @port: the opener
 * @wait: how long, and then which
 *
 * Return: 0, -ETIME or -EINTR.
 */
int leap_rx_wait(struct leap_port *port, struct leap_wait *wait)
{
	long left;

	if (leap_take_ready(port, wait))
		return 0;
	leap_busy_poll(port, wait->busy_us);
	left = wait_event_interruptible_timeout(port->wait,
						leap_take_ready(port, wait),
						usecs_to_jiffies(wait->timeout_us));
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIME;
}

/**
 * leap_rx_reject() - takes chunks again that the reader found to be bad
 * @port: the opener
 * @reject: which
 *
 * Return: 0, -EINVAL, or -ESTALE if the bank holds nothing of that frame.
 */
int leap_rx_reject(struct leap_port *port, const struct leap_reject *reject)
{
	struct leap_bank_meta *meta;
	struct leap_rx_bank *bank;
	u32 index = reject->bank;
	bool is_known;

	if (index >= LEAP_BANKS)
		return -EINVAL;
	bank = &port->banks[index];
	meta = leap_meta(port, index);
	spin_lock_bh(&bank->lock);
	is_known = leap_bank_reject(&bank->bank, reject->seq, reject->bitmap);
	if (is_known && bank->bank.state == LEAP_BANK_FREE) {
		leap_publish_free(meta, &bank->bank);
	} else if (is_known) {
		WRITE_ONCE(meta->bitmap[0], bank->bank.bitmap[0]);
		WRITE_ONCE(meta->bitmap[1], bank->bank.bitmap[1]);
		leap_publish_state(meta, bank->bank.state);
	}
	if (bank->bank.state != LEAP_BANK_READY)
		clear_bit(index, port->ready);
	spin_unlock_bh(&bank->lock);
	return is_known ? 0 : -ESTALE;
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
