/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by receiving and the banks.
 */
#ifndef LEAP_RX_H
#define LEAP_RX_H

#include <linux/skbuff.h>
#include "leap.h"

/**
 * struct leap_payload - where a chunk's bytes lie: in a packet, or in memory
 * @skb: the packet, or NULL
 * @offset: of the bytes in the packet
 * @memory: the bytes, without a packet
 */
struct leap_payload {
	const struct sk_buff *skb;
	u32 offset;
	const void *memory;
};

/* leap_rx_banks.c */
int leap_banks_init(struct leap_port *port);
void leap_banks_exit(struct leap_port *port);
void leap_banks_reset(struct leap_port *port, u64 session, u32 first_seq);
void leap_banks_receive(struct leap_port *port,
			const struct leap_datagram *header, u32 bytes,
			const struct leap_payload *payload);

#endif
