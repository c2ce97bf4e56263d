// SPDX-License-Identifier: GPL-2.0
/*
 * The banks in mapped memory: stores chunks, tells user space the state of each
 * bank, hears what it did to one, and wakes who waits for a frame.
 *
 * leap_bank.c decides; this file has the memory, the locks and the barriers.
 */
#include <linux/ktime.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <linux/skbuff.h>
#include <linux/vmalloc.h>
#include <net/busy_poll.h>
#include "leap_rx.h"

static unsigned int leap_busy_poll_max_us = 200;
module_param_named(busy_poll_max_us, leap_busy_poll_max_us, uint, 0644);
MODULE_PARM_DESC(busy_poll_max_us,
		 "longest time in microseconds that a waiting process may poll the network device (default 200, 0 = never)");

/**
 * leap_banks_init() - makes the banks of an opener
 * @port: the opener
 *
 * Return: 0 or -ENOMEM.
 */
int leap_banks_init(struct leap_port *port)
{
	u32 i;

	port->rx = vmalloc_user(LEAP_RX_BYTES);
	if (!port->rx)
		return -ENOMEM;
	for (i = 0; i < LEAP_BANKS; i++) {
		spin_lock_init(&port->banks[i].lock);
		leap_bank_reset(&port->banks[i].bank, i, 0, 0);
	}
	return 0;
}

/**
 * leap_banks_exit() - frees the banks
 * @port: the opener, whose hooks have ended
 */
void leap_banks_exit(struct leap_port *port)
{
	vfree(port->rx);
}

static struct leap_bank_meta *leap_meta(struct leap_port *port, u32 index)
{
	return leap_bank_memory(port, index);
}

/* Tells user space the state, after everything that it may then read. */
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
 * Hears what user space did to a bank. Pairs with its store-release: its reads
 * of the bank come before our next writes to it. The caller holds the lock.
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

static int leap_copy_payload(const struct leap_payload *from, void *to,
			     u32 bytes)
{
	if (from->skb)
		return skb_copy_bits(from->skb, from->offset, to, bytes);
	memcpy(to, from->memory, bytes);
	return 0;
}

/*
 * Copies an accepted chunk into the bank, whose lock the caller holds. Returns
 * whether the frame is complete.
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
	/* Pairs with user space's load-acquire: chunk and CRC are there. */
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

/**
 * leap_banks_receive() - stores what a datagram of our session holds
 * @port: the opener
 * @header: the datagram's; not believed before leap_chunk_parse()
 * @bytes: length of header and payload
 * @payload: where the payload lies
 */
void leap_banks_receive(struct leap_port *port,
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

/**
 * leap_banks_reset() - frees all banks for a new session
 * @port: the opener
 * @session: the session, or 0 for none
 * @first_seq: the session's first frame
 */
void leap_banks_reset(struct leap_port *port, u64 session, u32 first_seq)
{
	u32 i;

	for (i = 0; i < LEAP_BANKS; i++) {
		struct leap_rx_bank *bank = &port->banks[i];

		spin_lock_bh(&bank->lock);
		leap_bank_reset(&bank->bank, i, session, first_seq);
		clear_bit(i, port->ready);
		leap_publish_free(leap_meta(port, i), &bank->bank);
		spin_unlock_bh(&bank->lock);
	}
}

/**
 * leap_rx_reject() - forgets chunks that the reader found to be bad
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

/*
 * Looks again at a bank that became ready, and remembers if user space took it.
 * Returns whether it still waits to be taken.
 */
static bool leap_check_ready(struct leap_port *port, u32 index)
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
 * leap_rx_poll() - looks for a bank that is ready and not taken
 * @port: the opener
 *
 * Return: whether there is one: the file is readable.
 */
bool leap_rx_poll(struct leap_port *port)
{
	u32 i;

	for_each_set_bit(i, port->ready, LEAP_BANKS) {
		if (leap_check_ready(port, i))
			return true;
	}
	return false;
}

/* Marks a bank as held if it is ready and waits to be taken. */
static bool leap_hold(struct leap_port *port, u32 index, u32 seq)
{
	struct leap_rx_bank *bank = &port->banks[index];
	bool is_held;

	spin_lock_bh(&bank->lock);
	leap_sync(port, index);
	is_held = bank->bank.state == LEAP_BANK_READY && bank->bank.seq == seq;
	if (is_held) {
		bank->bank.state = LEAP_BANK_HELD;
		clear_bit(index, port->ready);
		leap_publish_state(leap_meta(port, index), LEAP_BANK_HELD);
	}
	spin_unlock_bh(&bank->lock);
	return is_held;
}

/* Holds the ready bank with the oldest frame, for the waiting caller. */
static bool leap_take_oldest(struct leap_port *port, struct leap_wait *wait)
{
	bool is_found = false;
	u32 i, seq;

	for_each_set_bit(i, port->ready, LEAP_BANKS) {
		seq = READ_ONCE(port->banks[i].bank.seq);
		if (!leap_check_ready(port, i) ||
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

	return leap_rx_poll(busy->port) || need_resched() ||
	       signal_pending(current) || ktime_get_ns() >= busy->end_ns;
}

/* Busy-polls the NIC queue: its interrupt may come late. */
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

	if (leap_take_oldest(port, wait))
		return 0;
	leap_busy_poll(port, wait->busy_us);
	left = wait_event_interruptible_timeout(port->wait,
						leap_take_oldest(port, wait),
						usecs_to_jiffies(wait->timeout_us));
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIME;
}
