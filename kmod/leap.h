/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the module's files.
 *
 * Locks: leap_port.config and leap_rx_bank.lock are never held together with
 * another of their kind. Order: leap_port.config, leap_ports_lock, then one
 * leap_rx_bank.lock (which softirq takes too, so always with _bh).
 */
#ifndef LEAP_H
#define LEAP_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netfilter.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/wait.h>
#include <net/net_namespace.h>
#include "leap_bank.h"
#include "leap_uapi.h"

#define LEAP_N_COUNTERS		(sizeof(struct leap_stats) / sizeof(__u64))
#define LEAP_PAGES_PER_SLOT	(LEAP_BANK_BYTES / PAGE_SIZE)
#define LEAP_TX_PAGES		(LEAP_TX_BYTES / PAGE_SIZE)
#define LEAP_POOL_PAGES		64

/**
 * struct leap_rx_bank - a bank as the module sees it
 * @lock: guards @bank and all that is written into the bank's memory
 * @bank: the authoritative state
 */
struct leap_rx_bank {
	/* Guards the bank and its memory; see above for the order. */
	spinlock_t lock;
	struct leap_bank bank;
} ____cacheline_aligned_in_smp;

/**
 * struct leap_source - whose datagrams are taken
 * @peer: address, port and session
 * @rcu: frees it once no hook reads it
 */
struct leap_source {
	struct leap_peer peer;
	struct rcu_head rcu;
};

/**
 * struct leap_pool - a ring of pages that skb heads are carved from
 * @pages: each with one reference of the pool's and one for every skb in it
 * @index: the page that is being carved
 * @used: bytes of it that are taken
 */
struct leap_pool {
	struct page *pages[LEAP_POOL_PAGES];
	u32 index;
	u32 used;
};

/**
 * struct leap_port - one opener of the device
 * @list: in leap_ports, under leap_ports_lock
 * @net: the opener's network namespace, held
 * @config: serialises ioctls that configure or send; guards all up to @hooks
 * @is_greeted: LEAP_IOC_HELLO found the same API version
 * @has_dest: @dest is valid
 * @is_anywhere: @local is the wildcard address
 * @local: where we receive, and what we send from; its port is 0 until set,
 *	and it does not change afterwards
 * @dest: where we send to
 * @tx_pages: memory of the slots, LEAP_TX_PAGES
 * @pool: memory of packets to send
 * @tx_used: pages of each slot that were ever given to the network
 * @hooks: of IPv4 and IPv6
 * @is_hooked: which of @hooks are registered
 * @source: whom we receive from, or NULL
 * @rx: memory of the banks
 * @ready: banks that became ready and are not known to be taken
 * @wait: sleepers
 * @napi_id: the NIC queue that the last datagram came from
 * @counters: struct leap_stats
 * @banks: state of the banks
 */
struct leap_port {
	struct list_head list;
	struct net *net;
	/* Serialises configuring and sending; see above for the order. */
	struct mutex config;
	bool is_greeted;
	bool has_dest;
	bool is_anywhere;
	struct leap_endpoint local;
	struct leap_dest dest;
	struct page **tx_pages;
	struct leap_pool pool;
	u8 tx_used[LEAP_BANKS];
	struct nf_hook_ops hooks[2];
	bool is_hooked[2];
	struct leap_source __rcu *source;
	void *rx;
	DECLARE_BITMAP(ready, LEAP_BANKS);
	wait_queue_head_t wait;
	unsigned int napi_id;
	atomic64_t counters[LEAP_N_COUNTERS];
	struct leap_rx_bank banks[LEAP_BANKS];
};

/* leap_count(port, rx_frames, 1) adds to that field of struct leap_stats. */
#define leap_count(port, field, n)					\
	atomic64_add(n, &(port)->counters[offsetof(struct leap_stats, field) / \
					  sizeof(__u64)])

static inline bool leap_addr_is_any(const struct leap_endpoint *endpoint)
{
	return !memchr_inv(endpoint->addr, 0, sizeof(endpoint->addr));
}

static inline void *leap_bank_memory(struct leap_port *port, u32 index)
{
	return port->rx + (size_t)index * LEAP_BANK_BYTES;
}

/* leap_rx.c */
int leap_rx_init(struct leap_port *port);
void leap_rx_exit(struct leap_port *port);
int leap_rx_set_peer(struct leap_port *port, const struct leap_peer *peer);
int leap_rx_move_peer(struct leap_port *port, const struct leap_peer *peer);
int leap_rx_take(struct leap_port *port, const struct leap_came *came);
int leap_rx_source(struct leap_port *port, struct leap_bank_src *src);

/* leap_rx_banks.c */
bool leap_rx_poll(struct leap_port *port);
int leap_rx_wait(struct leap_port *port, struct leap_wait *wait);
int leap_rx_reject(struct leap_port *port, const struct leap_reject *reject);

/* leap_tx.c */
int leap_tx_init(struct leap_port *port);
void leap_tx_exit(struct leap_port *port);
int leap_tx_set_dest(struct leap_port *port, struct leap_dest *dest);
int leap_tx_send(struct leap_port *port, struct leap_send *send);
u64 leap_tx_busy(struct leap_port *port);

#endif
