// SPDX-License-Identifier: GPL-2.0
/*
 * Slots: the pages that user space writes frames into and packets refer to.
 *
 * A page of a slot has one reference of the module's and one for every packet
 * that still needs it. With the module's alone, it may be written again.
 * A packet's destructor would not do: loopback, veth and some drivers call it
 * before the data was read, and packets may outlive the file and the module,
 * which leaves no code to be called.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include "leap_packet.h"

/**
 * leap_slots_init() - makes the slots of an opener
 * @port: the opener
 *
 * Return: 0 or -ENOMEM.
 */
int leap_slots_init(struct leap_port *port)
{
	size_t i;

	port->tx_pages = kvcalloc(LEAP_TX_PAGES, sizeof(*port->tx_pages),
				  GFP_KERNEL);
	if (!port->tx_pages)
		return -ENOMEM;
	for (i = 0; i < LEAP_TX_PAGES; i++) {
		port->tx_pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!port->tx_pages[i]) {
			leap_slots_exit(port);
			return -ENOMEM;
		}
	}
	return 0;
}

/**
 * leap_slots_exit() - frees the slots; packets on their way keep their pages
 * @port: the opener
 */
void leap_slots_exit(struct leap_port *port)
{
	size_t i;

	for (i = 0; i < LEAP_TX_PAGES && port->tx_pages[i]; i++)
		put_page(port->tx_pages[i]);
	kvfree(port->tx_pages);
}

/**
 * leap_slot_page() - finds a page of a slot
 * @port: the opener
 * @slot: the slot
 * @offset: of a byte in the slot
 *
 * Return: the page with that byte.
 */
struct page *leap_slot_page(struct leap_port *port, u32 slot, u32 offset)
{
	return port->tx_pages[slot * LEAP_PAGES_PER_SLOT + offset / PAGE_SIZE];
}

/**
 * leap_slot_lend() - notes that packets will refer to a slot
 * @port: the opener; its config lock is held
 * @slot: the slot
 * @bytes: how many of its bytes they refer to
 */
void leap_slot_lend(struct leap_port *port, u32 slot, u32 bytes)
{
	port->tx_used[slot] = max_t(u32, port->tx_used[slot],
				    DIV_ROUND_UP(bytes, PAGE_SIZE));
}

/**
 * leap_slot_reclaim() - takes a slot back if the network has read it
 * @port: the opener; its config lock is held
 * @slot: the slot
 *
 * Return: false if a packet still refers to the slot.
 */
bool leap_slot_reclaim(struct leap_port *port, u32 slot)
{
	u32 i;

	for (i = 0; i < port->tx_used[slot]; i++) {
		if (page_count(leap_slot_page(port, slot, i * PAGE_SIZE)) > 1)
			return false;
	}
	/* Reads through the pages are done before they are written. */
	smp_mb();
	port->tx_used[slot] = 0;
	return true;
}
