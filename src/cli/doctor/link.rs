//! Needs of links to other boards: the kernel module, a port, a network device, buffers.

use std::io;

use super::finding::Finding;
use crate::sys::nic;
use crate::sys::tree::Tree;

const MODULE: &str = "leap_transport";
const DEVICE: &str = "dev/leap_tensor";
/// The package that brings the module, as a file: no repository has it.
const PACKAGE: &str = concat!("leap-dkms_", env!("CARGO_PKG_VERSION"), "_all.deb");
/// Bit of `CapEff` in `/proc/PID/status`.
const CAP_NET_ADMIN: u32 = 12;
/// Bytes of a socket buffer that holds a ring's frames in flight.
const BUFFER_BYTES: i64 = 4 << 20;
/// Bytes of an IPv6 packet with the largest datagram of a link: 40 + 8 + 32 + 1400.
const MTU_WHOLE: i64 = 1480;
/// Microseconds that a driver may wait for more packets; longer waits are felt at every hop.
const COALESCE_MAX_US: u32 = 50;

/// Judges whether the module is loaded and this user may use it.
pub(super) fn module(tree: &Tree) -> Finding {
    if !tree.has(&format!("sys/module/{MODULE}")) {
        let text = "the kernel module is not loaded: boards talk through UDP sockets instead";
        let mend = match is_installed(tree) {
            true => format!("sudo modprobe {MODULE}"),
            false => format!(
                "sudo apt install ./{PACKAGE} && sudo modprobe {MODULE}  # scripts/build-deb.sh makes it"
            ),
        };
        return Finding::slow("module", text, mend);
    }
    let version = tree.text(&format!("sys/module/{MODULE}/version")).unwrap_or_default();
    let ours = env!("CARGO_PKG_VERSION");
    if !version.is_empty() && version != ours {
        return Finding::slow(
            "module",
            format!("the loaded module is version {version}, this program {ours}"),
            format!("sudo modprobe -r {MODULE} && sudo modprobe {MODULE}"),
        );
    }
    match std::fs::OpenOptions::new().read(true).write(true).open(tree.path(DEVICE)) {
        Ok(_) if has_capability(tree, CAP_NET_ADMIN) => {
            Finding::good("module", format!("loaded, /{DEVICE} opens"))
        }
        Ok(_) => Finding::slow(
            "module",
            format!("/{DEVICE} opens, but naming neighbours needs the capability NET_ADMIN"),
            "start LEAP as a service, or: sudo setcap cap_net_admin+ep \"$(command -v leap)\"",
        ),
        // EBUSY: the device is open as often as it allows.
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
            Finding::good("module", format!("loaded, /{DEVICE} is in use"))
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Finding::slow(
            "module",
            format!("loaded, but this user may not open /{DEVICE}"),
            "sudo usermod -aG leap \"$USER\"  # then log in again",
        ),
        Err(e) => Finding::slow(
            "module",
            format!("loaded, but /{DEVICE} does not open: {e}"),
            "sudo udevadm trigger --subsystem-match=misc  # busybox: mdev -s",
        ),
    }
}

/// True if `modprobe` would find the module for the running kernel.
fn is_installed(tree: &Tree) -> bool {
    let Some(release) = tree.text("proc/sys/kernel/osrelease") else { return false };
    // A release never has a slash; one in a made-up tree must not lead elsewhere.
    let folder = format!("lib/modules/{}", release.replace('/', "_"));
    ["updates/dkms", "updates", "extra", "kernel/net"].iter().any(|place| {
        ["ko", "ko.xz", "ko.zst", "ko.gz"]
            .iter()
            .any(|ending| tree.has(&format!("{folder}/{place}/{MODULE}.{ending}")))
    })
}

fn has_capability(tree: &Tree, bit: u32) -> bool {
    let status = tree.text("proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

/// Judges whether `port` is free, or used by a ring's node.
pub(super) fn port(tree: &Tree, port: u16) -> Finding {
    match nic::try_port(port) {
        Ok(()) => Finding::good("port", format!("{port} is free (UDP and TCP)")),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => match owner(tree, port) {
            Some(name) if name == "leap" => {
                Finding::good("port", format!("{port} is used by LEAP"))
            }
            name => {
                let name = name.unwrap_or_else(|| "another program".to_owned());
                let text = format!("{port} is used by {name}");
                Finding::bad(
                    "port",
                    text,
                    format!("sudo ss -lutnp sport = :{port}  # or take another --port"),
                )
            }
        },
        Err(e) => Finding::bad(
            "port",
            format!("{port} cannot be used: {e}"),
            "choose a --port from 1024 to 65535",
        ),
    }
}

/// Name of the program that listens on `port`, if this user may know it.
pub(super) fn owner(tree: &Tree, port: u16) -> Option<String> {
    let mut sockets = Vec::new();
    for table in ["udp", "udp6", "tcp", "tcp6"] {
        let table = tree.text(&format!("proc/net/{table}")).unwrap_or_default();
        let inodes = table.lines().filter_map(|line| inode(line, port));
        sockets.extend(inodes.map(|inode| format!("socket:[{inode}]")));
    }
    let processes = tree.names("proc");
    let mut processes = processes.iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    let owner = processes.find(|process| {
        let folder = format!("proc/{process}/fd");
        let links = tree.names(&folder).into_iter();
        links
            .filter_map(|fd| tree.link(&format!("{folder}/{fd}")))
            .any(|link| sockets.contains(&link))
    })?;
    tree.text(&format!("proc/{owner}/comm"))
}

/// Inode of the socket in a line of `/proc/net/udp` or `tcp`, if its local port is `port`.
fn inode(line: &str, port: u16) -> Option<&str> {
    let mut fields = line.split_ascii_whitespace();
    let (_, local) = fields.nth(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local, 16).ok()? == port;
    // Remote address, state, queues, timer, retransmissions, user and timeout stand between.
    fields.nth(7).filter(|inode| is_it && *inode != "0")
}

/// Judges whether the system allows socket buffers as large as a ring wants.
pub(super) fn buffers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in ["rmem_max", "wmem_max"] {
        let Some(bytes) = tree.number(&format!("proc/sys/net/core/{name}")) else { continue };
        if bytes < BUFFER_BYTES {
            findings.push(Finding::slow(
                "buffers",
                format!("net.core.{name} is {bytes}: bursts of a frame are dropped"),
                format!("sudo sysctl -w net.core.{name}={BUFFER_BYTES}"),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::good("buffers", "sockets may hold 4 MiB"));
    }
    findings
}

/// Judges the wired and wireless devices that are up, and settings that cost latency.
pub(super) fn devices(tree: &Tree) -> Vec<Finding> {
    let names = tree.names("sys/class/net");
    // Only hardware has a `device`: not lo, bridges and tunnels.
    let is_hardware = |name: &&String| tree.has(&format!("sys/class/net/{name}/device"));
    let is_up = |name: &&String| {
        tree.text(&format!("sys/class/net/{name}/operstate")).as_deref() == Some("up")
    };
    let up: Vec<&String> = names.iter().filter(is_hardware).filter(is_up).collect();
    if up.is_empty() {
        let mend = "ip link set DEVICE up  # and plug in a cable";
        return vec![Finding::slow(
            "network",
            "no network device is up: this board cannot join a ring",
            mend,
        )];
    }
    up.into_iter().flat_map(|name| device(tree, name)).collect()
}

fn device(tree: &Tree, name: &str) -> Vec<Finding> {
    let folder = format!("sys/class/net/{name}");
    let slow =
        |text: String, mend: String| Finding::slow("network", format!("{name} {text}"), mend);
    let mut findings = Vec::new();
    if tree.has(&format!("{folder}/wireless")) || tree.has(&format!("{folder}/phy80211")) {
        findings.push(slow("is wireless: milliseconds a hop".to_owned(), "use a cable".to_owned()));
        return findings;
    }
    // Devices without a fixed speed say -1.
    let speed = tree.number(&format!("{folder}/speed")).filter(|speed| *speed > 0);
    if let Some(speed) = speed.filter(|speed| *speed < 1000) {
        let mend = format!("sudo ethtool -s {name} autoneg on  # or change cable or switch");
        findings.push(slow(format!("runs at {speed} Mbit/s"), mend));
    }
    if tree.is_this_machine() {
        findings.extend(driver(tree, name));
    }
    if findings.is_empty() {
        let speed = speed.map_or(String::new(), |speed| format!(" at {speed} Mbit/s"));
        // A lowered MTU has a reason (a tunnel, a cloud, a provider); raising it would break what works.
        let mtu = tree.number(&format!("{folder}/mtu")).filter(|mtu| *mtu < MTU_WHOLE);
        let mtu = mtu.map_or(String::new(), |mtu| format!(", in packets of {mtu} bytes"));
        findings.push(Finding::good("network", format!("{name} is up{speed}{mtu}")));
    }
    findings
}

/// Findings that only the device's driver can tell.
fn driver(tree: &Tree, name: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Only the module's frames matter: sockets copy in any case.
    if tree.has(&format!("sys/module/{MODULE}")) && nic::can_gather(name) == Some(false) {
        findings.push(Finding::slow(
            "network",
            format!(
                "{name} gathers no pages: the kernel module's frames are copied once as they leave"
            ),
            format!("sudo ethtool -K {name} tx on sg on  # if the driver can"),
        ));
    }
    if let Some(us) = nic::rx_coalesce_us(name).filter(|us| *us > COALESCE_MAX_US) {
        findings.push(Finding::slow(
            "network",
            format!("{name} holds packets back for up to {us} us"),
            format!("sudo ethtool -C {name} rx-usecs 10"),
        ));
    }
    if nic::is_eee_active(name) == Some(true) {
        findings.push(Finding::slow(
            "network",
            format!("{name} sleeps between packets (EEE)"),
            format!("sudo ethtool --set-eee {name} eee off"),
        ));
    }
    findings
}
