// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/leap_tensor: openers, their mapping and their ioctls.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/capability.h>
#include <linux/compat.h>
#include <linux/fs.h>
#include <linux/in6.h>
#include <linux/ipv6.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nsproxy.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "leap.h"

static unsigned int leap_max_openers = 8;
module_param_named(max_openers, leap_max_openers, uint, 0644);
MODULE_PARM_DESC(max_openers,
		 "how often the device may be open at once; each takes 16 MiB (default 8)");

/* Guards leap_ports, leap_n_ports and every port's list and local.port. */
static DEFINE_MUTEX(leap_ports_lock);
static LIST_HEAD(leap_ports);
static unsigned int leap_n_ports;

static int leap_ports_add(struct leap_port *port)
{
	int err = 0;

	mutex_lock(&leap_ports_lock);
	if (leap_n_ports >= READ_ONCE(leap_max_openers)) {
		err = -EBUSY;
	} else {
		leap_n_ports++;
		list_add(&port->list, &leap_ports);
	}
	mutex_unlock(&leap_ports_lock);
	return err;
}

static void leap_ports_remove(struct leap_port *port)
{
	mutex_lock(&leap_ports_lock);
	list_del(&port->list);
	leap_n_ports--;
	mutex_unlock(&leap_ports_lock);
}

static int leap_open(struct inode *inode, struct file *file)
{
	struct leap_port *port;
	int err;

	port = kvzalloc(sizeof(*port), GFP_KERNEL);
	if (!port)
		return -ENOMEM;
	mutex_init(&port->config);
	init_waitqueue_head(&port->wait);
	port->net = get_net(current->nsproxy->net_ns);
	err = leap_ports_add(port);
	if (err)
		goto err_port;
	err = leap_rx_init(port);
	if (err)
		goto err_added;
	err = leap_tx_init(port);
	if (err)
		goto err_rx;
	file->private_data = port;
	return nonseekable_open(inode, file);

err_rx:
	leap_rx_exit(port);
err_added:
	leap_ports_remove(port);
err_port:
	put_net(port->net);
	kvfree(port);
	return err;
}

/*
 * A mapping holds its file, so this runs after the last of both is gone.
 */
static int leap_release(struct inode *inode, struct file *file)
{
	struct leap_port *port = file->private_data;

	leap_rx_exit(port);
	leap_tx_exit(port);
	leap_ports_remove(port);
	put_net(port->net);
	mutex_destroy(&port->config);
	kvfree(port);
	return 0;
}

#ifdef LEAP_HAVE_VM_FLAGS_CLEAR
#define leap_clear_vm_flags(vma, flags) vm_flags_clear(vma, flags)
#else
#define leap_clear_vm_flags(vma, flags) ((vma)->vm_flags &= ~(flags))
#endif

static unsigned long leap_map_pfn(struct leap_port *port, unsigned long offset)
{
	if (offset < LEAP_RX_BYTES)
		return vmalloc_to_pfn(port->rx + offset);
	return page_to_pfn(port->tx_pages[(offset - LEAP_RX_BYTES) / PAGE_SIZE]);
}

/*
 * Maps page frames, not pages: a mapping then holds no references to pages, and
 * a slot's pages are referred to by the network alone (see leap_slot.c).
 */
static int leap_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct leap_port *port = file->private_data;
	unsigned long offset;
	int err;

	if (!port->is_greeted)
		return -EPROTO;
	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EACCES;
	if (vma->vm_pgoff || vma->vm_end - vma->vm_start != LEAP_MAP_BYTES)
		return -EINVAL;
	/* Nor later, by mprotect(). */
	leap_clear_vm_flags(vma, VM_MAYEXEC);
	for (offset = 0; offset < LEAP_MAP_BYTES; offset += PAGE_SIZE) {
		err = remap_pfn_range(vma, vma->vm_start + offset,
				      leap_map_pfn(port, offset), PAGE_SIZE,
				      vma->vm_page_prot);
		if (err)
			return err;
	}
	return 0;
}

static __poll_t leap_poll(struct file *file, poll_table *table)
{
	struct leap_port *port = file->private_data;

	poll_wait(file, &port->wait, table);
	return leap_rx_poll(port) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* A kernel that has IPv6 may have been started without it (ipv6.disable=1). */
static bool leap_has_ipv6(void)
{
	return IS_ENABLED(CONFIG_IPV6) && ipv6_mod_enabled();
}

/* Returns 0, -EINVAL, or -EAFNOSUPPORT where there is no IPv6. */
static long leap_check_endpoint(const struct leap_endpoint *endpoint)
{
	switch (endpoint->family) {
	case AF_INET:
		return endpoint->port && !endpoint->scope ? 0 : -EINVAL;
	case AF_INET6:
		if (!leap_has_ipv6())
			return -EAFNOSUPPORT;
		return endpoint->port ? 0 : -EINVAL;
	default:
		return -EINVAL;
	}
}

/* An opener at no address in particular has neighbours of both families. */
static long leap_check_neighbour(const struct leap_port *port,
				 const struct leap_endpoint *neighbour)
{
	long err = leap_check_endpoint(neighbour);

	if (err)
		return err;
	return neighbour->family == port->local.family || port->is_anywhere ?
		       0 : -EINVAL;
}

static bool leap_port_is_taken(struct leap_port *port, __be16 number)
{
	struct leap_port *other;

	list_for_each_entry(other, &leap_ports, list) {
		if (other != port && other->local.port == number &&
		    net_eq(other->net, port->net))
			return true;
	}
	return false;
}

static long leap_ioc_hello(struct leap_port *port, struct leap_hello *hello)
{
	bool is_same = hello->api_version == LEAP_API_VERSION;

	port->is_greeted = is_same;
	hello->api_version = LEAP_API_VERSION;
	hello->features = 0;
	if (leap_has_ipv6())
		hello->features |= LEAP_FEATURE_IPV6;
	if (IS_ENABLED(CONFIG_NET_RX_BUSY_POLL))
		hello->features |= LEAP_FEATURE_BUSY_POLL;
	hello->map_bytes = LEAP_MAP_BYTES;
	hello->banks = LEAP_BANKS;
	return is_same ? 0 : -EPROTONOSUPPORT;
}

/* Once only: the hooks read port->local without a lock. */
static long leap_ioc_set_port(struct leap_port *port,
			      const struct leap_endpoint *local)
{
	long err = leap_check_endpoint(local);

	if (err)
		return err;
	mutex_lock(&leap_ports_lock);
	if (port->local.port) {
		err = -EISCONN;
	} else if (leap_port_is_taken(port, local->port)) {
		err = -EADDRINUSE;
	} else {
		port->local = *local;
		port->is_anywhere = leap_addr_is_any(local);
	}
	mutex_unlock(&leap_ports_lock);
	return err;
}

static long leap_ioc_set_peer(struct leap_port *port,
			      const struct leap_peer *peer)
{
	long err = 0;

	if (!port->local.port)
		return -ENOTCONN;
	if (peer->session)
		err = peer->reserved ? -EINVAL :
				       leap_check_neighbour(port, &peer->from);
	return err ? err : leap_rx_set_peer(port, peer);
}

static long leap_ioc_move_peer(struct leap_port *port,
			       const struct leap_peer *peer)
{
	long err;

	if (!port->local.port)
		return -ENOTCONN;
	if (!peer->session || peer->reserved)
		return -EINVAL;
	err = leap_check_neighbour(port, &peer->from);
	return err ? err : leap_rx_move_peer(port, peer);
}

static long leap_ioc_set_dest(struct leap_port *port, struct leap_dest *dest)
{
	long err;

	if (!port->local.port)
		return -ENOTCONN;
	if (!dest->session)
		return -EINVAL;
	err = leap_check_neighbour(port, &dest->to);
	return err ? err : leap_tx_set_dest(port, dest);
}

static void leap_ioc_stats(struct leap_port *port, struct leap_stats *stats)
{
	__u64 *out = (__u64 *)stats;
	size_t i;

	for (i = 0; i < LEAP_N_COUNTERS; i++)
		out[i] = atomic64_read(&port->counters[i]);
}

/* The argument of any ioctl, copied in before and out after it. */
union leap_argument {
	struct leap_hello hello;
	struct leap_endpoint local;
	struct leap_peer peer;
	struct leap_came came;
	struct leap_dest dest;
	struct leap_wait wait;
	struct leap_send send;
	struct leap_reject reject;
	struct leap_bank_src src;
	struct leap_stats stats;
	__u64 busy;
};

static bool leap_needs_admin(unsigned int command)
{
	return command == LEAP_IOC_SET_PORT || command == LEAP_IOC_SET_PEER ||
	       command == LEAP_IOC_SET_DEST || command == LEAP_IOC_MOVE_PEER;
}

/* Commands that do not touch what port->config guards. */
static long leap_command_unlocked(struct leap_port *port, unsigned int command,
				  union leap_argument *arg)
{
	switch (command) {
	case LEAP_IOC_WAIT_DATA:
		return leap_rx_wait(port, &arg->wait);
	case LEAP_IOC_REJECT:
		return leap_rx_reject(port, &arg->reject);
	case LEAP_IOC_GET_BANK_SRC:
		return leap_rx_source(port, &arg->src);
	case LEAP_IOC_STATS:
		leap_ioc_stats(port, &arg->stats);
		return 0;
	default:
		return -ENOTTY;
	}
}

static long leap_command(struct leap_port *port, unsigned int command,
			 union leap_argument *arg)
{
	switch (command) {
	case LEAP_IOC_SEND:
		return leap_tx_send(port, &arg->send);
	case LEAP_IOC_TX_BUSY:
		arg->busy = leap_tx_busy(port);
		return 0;
	case LEAP_IOC_SET_PORT:
		return leap_ioc_set_port(port, &arg->local);
	case LEAP_IOC_SET_PEER:
		return leap_ioc_set_peer(port, &arg->peer);
	case LEAP_IOC_MOVE_PEER:
		return leap_ioc_move_peer(port, &arg->peer);
	case LEAP_IOC_TAKE:
		return leap_rx_take(port, &arg->came);
	case LEAP_IOC_SET_DEST:
		return leap_ioc_set_dest(port, &arg->dest);
	case LEAP_IOC_HELLO:
		return leap_ioc_hello(port, &arg->hello);
	default:
		return leap_command_unlocked(port, command, arg);
	}
}

static bool leap_is_unlocked(unsigned int command)
{
	return command == LEAP_IOC_WAIT_DATA || command == LEAP_IOC_REJECT ||
	       command == LEAP_IOC_GET_BANK_SRC || command == LEAP_IOC_STATS;
}

static long leap_run(struct leap_port *port, unsigned int command,
		     union leap_argument *arg)
{
	long err;

	if (!READ_ONCE(port->is_greeted) && command != LEAP_IOC_HELLO)
		return -EPROTO;
	if (leap_needs_admin(command) &&
	    !ns_capable(port->net->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	if (leap_is_unlocked(command))
		return leap_command_unlocked(port, command, arg);
	if (mutex_lock_interruptible(&port->config))
		return -ERESTARTSYS;
	err = leap_command(port, command, arg);
	mutex_unlock(&port->config);
	return err;
}

static long leap_ioctl(struct file *file, unsigned int command,
		       unsigned long address)
{
	void __user *user = (void __user *)address;
	size_t bytes = _IOC_SIZE(command);
	union leap_argument arg;
	long err;

	if (_IOC_TYPE(command) != LEAP_IOC_MAGIC || bytes > sizeof(arg))
		return -ENOTTY;
	memset(&arg, 0, sizeof(arg));
	if ((_IOC_DIR(command) & _IOC_WRITE) &&
	    copy_from_user(&arg, user, bytes))
		return -EFAULT;
	err = leap_run(file->private_data, command, &arg);
	/* A refused greeting still tells the module's version. */
	if (err && err != -EPROTONOSUPPORT)
		return err;
	if ((_IOC_DIR(command) & _IOC_READ) &&
	    copy_to_user(user, &arg, bytes))
		return -EFAULT;
	return err;
}

static const struct file_operations leap_fops = {
	.owner = THIS_MODULE,
	.open = leap_open,
	.release = leap_release,
	.mmap = leap_mmap,
	.poll = leap_poll,
	.unlocked_ioctl = leap_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice leap_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "leap_tensor",
	.fops = &leap_fops,
	.mode = 0660,
};

static int __init leap_init(void)
{
	/* src/transport/kmod.rs asserts the same sizes; change both or none. */
	BUILD_BUG_ON(sizeof(struct leap_datagram) != LEAP_HEADER_BYTES);
	BUILD_BUG_ON(sizeof(struct leap_bank_meta) != 432);
	BUILD_BUG_ON(sizeof(struct leap_endpoint) != 24);
	BUILD_BUG_ON(sizeof(struct leap_hello) != 16);
	BUILD_BUG_ON(sizeof(struct leap_peer) != 40);
	BUILD_BUG_ON(sizeof(struct leap_came) != 16);
	BUILD_BUG_ON(sizeof(struct leap_dest) != 40);
	BUILD_BUG_ON(sizeof(struct leap_wait) != 16);
	BUILD_BUG_ON(sizeof(struct leap_send) != 48);
	BUILD_BUG_ON(sizeof(struct leap_reject) != 24);
	BUILD_BUG_ON(sizeof(struct leap_bank_src) != 40);
	BUILD_BUG_ON(sizeof(struct leap_stats) != 136);
	BUILD_BUG_ON(LEAP_META_BYTES + LEAP_FRAME_MAX > LEAP_BANK_BYTES);
	BUILD_BUG_ON(LEAP_BANK_BYTES % PAGE_SIZE);
	BUILD_BUG_ON(LEAP_MAX_CHUNKS * LEAP_HEADER_BYTES > PAGE_SIZE);

	return misc_register(&leap_device);
}

static void __exit leap_exit(void)
{
	misc_deregister(&leap_device);
}

module_init(leap_init);
module_exit(leap_exit);

MODULE_DESCRIPTION("LEAP activation transport: datagrams into mapped memory");
MODULE_AUTHOR("The LEAP developers");
MODULE_LICENSE("GPL");
MODULE_VERSION(LEAP_VERSION);
MODULE_ALIAS("devname:leap_tensor");
