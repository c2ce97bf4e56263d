// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of what the module does where the network lacks something: an address family, a route, an
 * interface that is up, the network namespace itself.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "selftest.h"

bool has_ipv6(void)
{
	int fd = socket(AF_INET6, SOCK_DGRAM, 0);

	check(fd >= 0 || errno == EAFNOSUPPORT);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int set_dest(struct port *port, const char *address)
{
	struct leap_dest dest = { .to = endpoint(address, PEER), .session = SESSION };

	return ioctl(port->fd, LEAP_IOC_SET_DEST, &dest);
}

static void set_loopback(bool is_up)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = is_up ? IFF_UP : 0 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	check(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0);
	close(fd);
}

/* Goes to a new network namespace; returns the way back. */
static int leave_network(void)
{
	int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	check(home >= 0 && unshare(CLONE_NEWNET) == 0);
	return home;
}

static void return_to_network(int home)
{
	check(setns(home, CLONE_NEWNET) == 0);
	close(home);
}

void ipv6_is_offered_where_the_kernel_has_it(void)
{
	struct leap_hello hello = { .api_version = LEAP_API_VERSION };
	struct leap_endpoint local = endpoint("::1", HERE);
	struct leap_peer moved = { .from = local, .session = SESSION };
	struct port port = port_open(), other = port_at("0.0.0.0", HERE);

	check(ioctl(port.fd, LEAP_IOC_HELLO, &hello) == 0);
	check(!!(hello.features & LEAP_FEATURE_IPV6) == has_ipv6());
	if (has_ipv6()) {
		check(port_from(&other, "::1", PEER, SESSION, 0) == 0);
		check(ioctl(other.fd, LEAP_IOC_MOVE_PEER, &moved) == 0);
		check(set_dest(&other, "::1") == 0);
	} else {
		refused(ioctl(port.fd, LEAP_IOC_SET_PORT, &local), EAFNOSUPPORT);
		refused(port_from(&other, "::1", PEER, SESSION, 0), EAFNOSUPPORT);
		refused(ioctl(other.fd, LEAP_IOC_MOVE_PEER, &moved), EAFNOSUPPORT);
		refused(set_dest(&other, "::1"), EAFNOSUPPORT);
		refused(set_dest(&other, "fe80::1"), EAFNOSUPPORT);
	}
	port_close(&other);
	port_close(&port);
}

void a_way_that_is_not_there_is_refused(void)
{
	struct leap_send send = frame_send(0, 0, 16384);
	int home = leave_network();
	struct port port = port_at("0.0.0.0", HERE);

	refused(set_dest(&port, "127.0.0.1"), ENETUNREACH);
	refused(set_dest(&port, "10.99.0.1"), ENETUNREACH);
	if (has_ipv6()) {
		check(set_dest(&port, "::1") < 0);
		check(set_dest(&port, "fe80::1") < 0);
		check(set_dest(&port, "fd00:99::1") < 0);
		check(set_dest(&port, "ff02::1") < 0);
	}
	refused(ioctl(port.fd, LEAP_IOC_SEND, &send), ENOTCONN);
	set_loopback(true);
	check(set_dest(&port, "127.0.0.1") == 0);
	check(ioctl(port.fd, LEAP_IOC_SEND, &send) == 0 && send.sent == send.n_chunks);
	port_close(&port);
	return_to_network(home);
}

void a_device_may_go_down_under_a_sender(void)
{
	int home = leave_network();
	uint32_t seq, bank;

	set_loopback(true);
	open_pair("127.0.0.1", 0);
	for (seq = 0; seq < 3; seq++) {
		deliver(seq, 50000);
		set_loopback(false);
		port_send(&sender, frame_send(seq + 1, seq + 1, 50000));
		refused(port_wait(&receiver, 20000, &bank), ETIME);
		set_loopback(true);
	}
	close_pair();
	return_to_network(home);
}

void a_namespace_stays_for_those_who_opened_there(void)
{
	int home = leave_network();

	set_loopback(true);
	open_pair("127.0.0.1", 0);
	/* Only the two openers are there now. */
	return_to_network(home);
	sleep_ms(100);
	deliver(0, 50000);
	close_pair();
}

void a_namespace_ends_with_packets_on_their_way(void)
{
	int home = leave_network();

	set_loopback(true);
	check(netem("lo", 300, 0, 0, 0) == 0);
	open_pair("127.0.0.1", 0);
	return_to_network(home);
	port_send(&sender, frame_send(0, 0, LEAP_FRAME_MAX));
	close_pair();
	/* It is taken apart meanwhile. */
	sleep_ms(600);
}
