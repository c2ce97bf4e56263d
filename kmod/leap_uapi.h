/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Shared by user space and the module: /dev/leap_tensor's mapping and its
 * ioctls. Numbers are in the machine's byte order but where a type says
 * otherwise.
 *
 * An opener is one node of a ring. It greets (LEAP_IOC_HELLO), names its port
 * (LEAP_IOC_SET_PORT), the neighbour it receives from (LEAP_IOC_SET_PEER) and
 * the one it sends to (LEAP_IOC_SET_DEST). Naming them needs CAP_NET_ADMIN in
 * the opener's network namespace; sending and waiting need only the file.
 *
 * The mapping is LEAP_MAP_BYTES long: LEAP_BANKS banks to receive, then as
 * many slots to send from. Each is LEAP_BANK_BYTES: a struct leap_bank_meta in
 * the first LEAP_META_BYTES, then LEAP_MAX_CHUNKS chunks of LEAP_SLOT_BYTES.
 *
 * Frame seq is received in bank seq % LEAP_BANKS, which passes through
 *
 *   LEAP_BANK_FREE     nothing of the frame has come
 *   LEAP_BANK_FILLING  some chunks are there: see bitmap
 *   LEAP_BANK_READY    all are there; the module writes to it no more
 *   LEAP_BANK_HELD     user space is reading
 *
 * User space sets HELD when it takes a ready bank by itself (LEAP_IOC_WAIT_DATA
 * does it for the bank it returns), and FREE when it has read it. From then on
 * the bank waits for frame seq + LEAP_BANKS and takes no other. The module has
 * a copy of its own of all this and believes in the mapping only that a bank it
 * knows to be READY or HELD was given back.
 */
#ifndef LEAP_UAPI_H
#define LEAP_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define LEAP_API_VERSION	2

#define LEAP_BANKS		64
#define LEAP_BANK_BYTES		131072
#define LEAP_META_BYTES		1024
#define LEAP_SLOT_BYTES		1400
#define LEAP_MAX_CHUNKS		92
#define LEAP_FRAME_MAX		(LEAP_MAX_CHUNKS * LEAP_SLOT_BYTES)
#define LEAP_RX_BYTES		(LEAP_BANKS * LEAP_BANK_BYTES)
#define LEAP_TX_BYTES		(LEAP_BANKS * LEAP_BANK_BYTES)
#define LEAP_MAP_BYTES		(LEAP_RX_BYTES + LEAP_TX_BYTES)

#define LEAP_BANK_FREE		0
#define LEAP_BANK_FILLING	1
#define LEAP_BANK_READY		2
#define LEAP_BANK_HELD		3

/**
 * struct leap_bank_meta - head of a bank, and of a slot to send from
 * @state: LEAP_BANK_*
 * @seq: the frame in the bank, or the one it waits for
 * @session: the sender's session
 * @n_chunks: chunks of the frame, once one has come
 * @frame_bytes: bytes of the frame, once a chunk has come
 * @bitmap: bit i is set once chunk i lies in its slot
 * @conflicts: chunks dropped as they disagreed with the first about the
 *	frame's size; user space then checks the chunks that are there
 * @reserved: zero
 * @first_ns: CLOCK_MONOTONIC when the first chunk came
 * @ready_ns: CLOCK_MONOTONIC when the last chunk came
 * @crc: each datagram's checksum: of a bank as received, of a slot to send from
 *	as user space computed them (the other fields of a slot are not read)
 */
struct leap_bank_meta {
	__u32 state;
	__u32 seq;
	__u64 session;
	__u32 n_chunks;
	__u32 frame_bytes;
	__u64 bitmap[2];
	__u32 conflicts;
	__u32 reserved;
	__u64 first_ns;
	__u64 ready_ns;
	__u32 crc[LEAP_MAX_CHUNKS];
};

/**
 * struct leap_endpoint - an address and a port
 * @family: AF_INET or AF_INET6
 * @port: UDP port
 * @scope: interface index of a link-local IPv6 address, otherwise 0
 * @addr: the address, an IPv4 one in the first four bytes
 *
 * One of AF_INET6 is refused with EAFNOSUPPORT where the kernel has no IPv6 or
 * was started without it.
 */
struct leap_endpoint {
	__u16 family;
	__be16 port;
	__u32 scope;
	__u8 addr[16];
};

/**
 * struct leap_hello - LEAP_IOC_HELLO, which precedes all others
 * @api_version: in: the caller's; out: the module's. If they differ, the call
 *	fails with EPROTONOSUPPORT and so does every other.
 * @features: out: LEAP_FEATURE_*
 * @map_bytes: out: length of the mapping
 * @banks: out: LEAP_BANKS
 */
struct leap_hello {
	__u32 api_version;
	__u32 features;
	__u32 map_bytes;
	__u32 banks;
};

#define LEAP_FEATURE_IPV6	1U
#define LEAP_FEATURE_BUSY_POLL	2U

/**
 * struct leap_peer - LEAP_IOC_SET_PEER: whom to receive from
 * @from: the neighbour's address and port
 * @session: the session; 0 takes no more datagrams, and the rest is not read
 * @first_seq: the first frame to come
 * @reserved: zero
 *
 * Frees all banks and forgets what was in them. LEAP_IOC_MOVE_PEER leaves them
 * as they are: the neighbour goes on with its session at another address. It
 * fails with ENOTCONN if the session is not the one that is received, and
 * first_seq is not read.
 */
struct leap_peer {
	struct leap_endpoint from;
	__u64 session;
	__u32 first_seq;
	__u32 reserved;
};

/**
 * struct leap_came - LEAP_IOC_TAKE: a datagram that came another way
 * @address: where it lies in the caller's memory, its header first
 * @bytes: its length
 * @reserved: zero
 *
 * A datagram that was too long for its path came to the socket in pieces: it
 * is taken as if it had come whole. Fails with ENOTCONN if it is not of the
 * session that is received.
 */
struct leap_came {
	__u64 address;
	__u32 bytes;
	__u32 reserved;
};

/**
 * struct leap_dest - LEAP_IOC_SET_DEST: whom to send to
 * @to: the neighbour's address and port
 * @session: the session
 * @flags: out: LEAP_DEST_*
 * @mtu: out: the path's MTU
 */
struct leap_dest {
	struct leap_endpoint to;
	__u64 session;
	__u32 flags;
	__u32 mtu;
};

/*
 * Payload is copied once: the network device does not gather pages, computes no
 * checksums, or passes packets on to another device.
 */
#define LEAP_DEST_ONE_COPY	1U

/**
 * struct leap_wait - LEAP_IOC_WAIT_DATA
 * @timeout_us: longest sleep; 0 returns at once
 * @busy_us: poll the network device for as long before sleeping; the module's
 *	parameter busy_poll_max_us bounds it
 * @bank: out: the ready bank with the oldest frame, now held
 * @seq: out: the frame in it
 *
 * Fails with ETIME when no bank is ready, EINTR on a signal.
 */
struct leap_wait {
	__u32 timeout_us;
	__u32 busy_us;
	__u32 bank;
	__u32 seq;
};

/**
 * struct leap_send - LEAP_IOC_SEND
 * @slot: the slot to send from
 * @seq: number of the frame
 * @n_chunks: chunks in the slot
 * @frame_bytes: bytes in the slot
 * @bitmap: the chunks to send
 * @sent: out: how many of them the network took
 * @watch: a slot, usually the next one to be written
 * @watch_is_busy: out: whether the network still reads from that slot
 * @reserved: zero
 *
 * Fails with EMSGSIZE if the path takes no datagrams of their length.
 */
struct leap_send {
	__u32 slot;
	__u32 seq;
	__u32 n_chunks;
	__u32 frame_bytes;
	__u64 bitmap[2];
	__u32 sent;
	__u32 watch;
	__u32 watch_is_busy;
	__u32 reserved;
};

/**
 * struct leap_reject - LEAP_IOC_REJECT: chunks turned out to be bad
 * @bank: the bank, not free
 * @seq: the frame in it
 * @bitmap: chunks to take again; with none left the bank is free for the frame
 */
struct leap_reject {
	__u32 bank;
	__u32 seq;
	__u64 bitmap[2];
};

/**
 * struct leap_bank_src - LEAP_IOC_GET_BANK_SRC
 * @bank: the bank
 * @seq: out: the frame in it
 * @from: out: who sent it
 * @session: out: in which session
 */
struct leap_bank_src {
	__u32 bank;
	__u32 seq;
	struct leap_endpoint from;
	__u64 session;
};

/**
 * struct leap_stats - LEAP_IOC_STATS, counted since the file was opened
 * @rx_datagrams: chunks stored
 * @rx_bytes: their payload
 * @rx_frames: frames completed
 * @rx_duplicate: chunks that were there
 * @rx_old: chunks of frames that are over
 * @rx_ahead: chunks of frames whose bank is not free yet
 * @rx_conflict: chunks that disagree about their frame's size
 * @rx_malformed: headers whose numbers do not agree
 * @rx_bad_length: UDP length other than the packet's
 * @rx_bad_checksum: wrong UDP checksum
 * @rx_gso: packets that held several datagrams
 * @rx_gso_dropped: packets that held several in a way that is not taken apart
 * @wakeups: times a sleeper was woken
 * @tx_frames: calls that sent
 * @tx_datagrams: chunks sent
 * @tx_bytes: their payload
 * @tx_failed: chunks that the network refused
 */
struct leap_stats {
	__u64 rx_datagrams;
	__u64 rx_bytes;
	__u64 rx_frames;
	__u64 rx_duplicate;
	__u64 rx_old;
	__u64 rx_ahead;
	__u64 rx_conflict;
	__u64 rx_malformed;
	__u64 rx_bad_length;
	__u64 rx_bad_checksum;
	__u64 rx_gso;
	__u64 rx_gso_dropped;
	__u64 wakeups;
	__u64 tx_frames;
	__u64 tx_datagrams;
	__u64 tx_bytes;
	__u64 tx_failed;
};

#define LEAP_IOC_MAGIC		'L'
#define LEAP_IOC_HELLO		_IOWR(LEAP_IOC_MAGIC, 0x40, struct leap_hello)
#define LEAP_IOC_SET_PORT	_IOW(LEAP_IOC_MAGIC, 0x41, struct leap_endpoint)
#define LEAP_IOC_SET_PEER	_IOW(LEAP_IOC_MAGIC, 0x42, struct leap_peer)
#define LEAP_IOC_SET_DEST	_IOWR(LEAP_IOC_MAGIC, 0x43, struct leap_dest)
#define LEAP_IOC_WAIT_DATA	_IOWR(LEAP_IOC_MAGIC, 0x44, struct leap_wait)
#define LEAP_IOC_SEND		_IOWR(LEAP_IOC_MAGIC, 0x45, struct leap_send)
#define LEAP_IOC_TX_BUSY	_IOR(LEAP_IOC_MAGIC, 0x46, __u64)
#define LEAP_IOC_REJECT		_IOW(LEAP_IOC_MAGIC, 0x47, struct leap_reject)
#define LEAP_IOC_GET_BANK_SRC	_IOWR(LEAP_IOC_MAGIC, 0x48, struct leap_bank_src)
#define LEAP_IOC_STATS		_IOR(LEAP_IOC_MAGIC, 0x49, struct leap_stats)
#define LEAP_IOC_MOVE_PEER	_IOW(LEAP_IOC_MAGIC, 0x4a, struct leap_peer)
#define LEAP_IOC_TAKE		_IOW(LEAP_IOC_MAGIC, 0x4b, struct leap_came)

#endif
