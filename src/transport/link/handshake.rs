//! How a session begins.
//!
//! The listener answers an acceptable HELLO with a WELCOME and forgets it. Session number, nonce and
//! ephemeral key of the WELCOME are derived from a secret, the sender's address and the HELLO; the CONFIRM
//! repeats the HELLO, so that they can be derived again. A session that is taken changes the secret: no
//! CONFIRM works twice, recorded ones are worthless, and the session's keys cannot be derived again.

use std::net::SocketAddr;

use super::config::LinkConfig;
use super::times::SILENCE_US;
use crate::transport::Micros;
use crate::wire::hello::{
    CONFIRM_LEN, Confirm, HELLO_LEN, HELLO_SEEN, Hello, Name, Nonce, PROTOCOL, REFUSE_LEN,
    REFUSE_TAGGED, Refusal, Refuse, RingInfo, Tag, WELCOME_LEN, WELCOME_SEEN, WELCOME_TAGGED,
    Welcome,
};
use crate::wire::noise::{Ephemeral, MESSAGE_LEN, Message};
use crate::wire::seal::{Key, SessionKeys, derive, is_equal};

/// Session parameters that both ends agreed on.
pub(super) struct Agreed {
    pub(super) id: u64,
    pub(super) keys: Option<SessionKeys>,
    /// Address that the neighbour sends from.
    pub(super) from: SocketAddr,
    /// The neighbour's run.
    pub(super) instance: u64,
    /// The session that the connector wants to resume, or 0.
    pub(super) resume: u64,
    pub(super) peer: RingInfo,
}

impl Agreed {
    /// Whether lower counters of the session are accepted again. Without keys a stranger can forge the highest counter:
    /// if nothing newer follows for a while, that counter was not the neighbour's.
    pub(super) fn is_recounted(&self, now: Micros, heard_at: Micros) -> bool {
        self.keys.is_none() && now > heard_at + SILENCE_US
    }
}

/// Tag over the offer of `session` that answers `hello`.
fn welcome_tag(
    keys: &SessionKeys,
    session: u64,
    welcome: &[u8; WELCOME_LEN],
    hello: &[u8; HELLO_LEN],
) -> Tag {
    keys.tag("LEAP welcome", &[&session.to_le_bytes(), &welcome[..WELCOME_TAGGED], hello])
}

fn confirm_tag(keys: &SessionKeys, session: u64, confirm: &Confirm) -> Tag {
    let parts: [&[u8]; 3] = [&session.to_le_bytes(), &confirm.hello, &confirm.welcome_nonce];
    keys.tag("LEAP confirm", &parts)
}

/// Splits a HELLO into what precedes its greeting, and the greeting.
fn split(hello: &[u8; HELLO_LEN]) -> (&[u8], &Message) {
    let (seen, greeting) = hello.split_at(HELLO_SEEN);
    (seen, greeting.first_chunk().expect("the greeting is a HELLO's end"))
}

fn refuse_tag(key: &Key, refuse: &[u8; REFUSE_LEN]) -> Tag {
    key.tag("LEAP refuse", &[&refuse[..REFUSE_TAGGED]])
}

/// Fails if only one end has a key.
fn check_has_key(prev: bool, next: bool) -> Result<(), Refusal> {
    match (prev, next) {
        (false, true) => Err(Refusal::KeyNeeded),
        (true, false) => Err(Refusal::KeyUnwanted),
        _ => Ok(()),
    }
}

/// The connector's HELLO; with a key, `ephemeral` is its share of the exchange.
pub(super) fn hello(
    config: &LinkConfig,
    (nonce, ephemeral): (Nonce, &Ephemeral),
    resume: u64,
) -> [u8; HELLO_LEN] {
    let (node, has_key) = (config.node.clone(), config.key.is_some());
    let (instance, to) = (config.run, config.next.clone().unwrap_or_default());
    let greeting = [0; MESSAGE_LEN];
    let hello = Hello { protocol: PROTOCOL, has_key, instance, nonce, resume, node, to, greeting };
    let mut bytes = [0; HELLO_LEN];
    hello.emit(&mut bytes);
    if let Some(key) = &config.key {
        let greeting = key.end(ephemeral, split(&bytes).0).greeting();
        bytes[HELLO_SEEN..].copy_from_slice(&greeting);
    }
    bytes
}

/// The REFUSE of the HELLO with this nonce.
pub(super) fn refuse(
    config: &LinkConfig,
    hello_nonce: Nonce,
    refusal: Refusal,
) -> [u8; REFUSE_LEN] {
    let name = config.node.name.clone();
    let mut bytes = [0; REFUSE_LEN];
    Refuse { hello_nonce, refusal, name, tag: Tag::default() }.emit(&mut bytes);
    if let Some(key) = &config.key {
        let tag = refuse_tag(key, &bytes);
        bytes[REFUSE_TAGGED..].copy_from_slice(&tag);
    }
    bytes
}

/// Checks a REFUSE that answers the connector's `hello`. Returns the refusal, the peer's name, and whether the refusal
/// is proven with the key. `None` if it answers something else, or gives without proof a reason that only holders of
/// the key can know.
pub(super) fn accept_refuse(
    config: &LinkConfig,
    hello: &[u8; HELLO_LEN],
    payload: &[u8],
) -> Option<(Refusal, Name, bool)> {
    let refuse = Refuse::parse(payload).ok()?;
    if refuse.hello_nonce[..] != hello[16..32] {
        return None;
    }
    let is_proven = |key| {
        let bytes = payload.first_chunk();
        bytes.is_some_and(|bytes| is_equal(&refuse_tag(key, bytes), &refuse.tag))
    };
    let is_proven = config.key.as_ref().map(is_proven);
    if is_proven == Some(false) && !refuse.refusal.is_keyless() {
        return None;
    }
    Some((refuse.refusal, refuse.name, is_proven == Some(true)))
}

/// A WELCOME that does not lead to a session: the reason, and whether the sender proved the key.
pub(super) struct Unfit {
    pub(super) refusal: Refusal,
    pub(super) name: Name,
    pub(super) is_proven: bool,
}

/// Checks a WELCOME that answers the connector's `hello`. Returns the session, and the CONFIRM that takes it. `None` if
/// the WELCOME answers something else.
pub(super) fn accept_welcome(
    config: &LinkConfig,
    (hello, ephemeral): (&[u8; HELLO_LEN], &Ephemeral),
    (from, session): (SocketAddr, u64),
    payload: &[u8],
) -> Option<Result<(Agreed, [u8; CONFIRM_LEN]), Unfit>> {
    let welcome = Welcome::parse(payload).ok()?;
    if session == 0 || welcome.hello_nonce[..] != hello[16..32] {
        return None;
    }
    let unfit = |refusal, is_proven| {
        let name = welcome.node.name.clone();
        Some(Err(Unfit { refusal, name, is_proven }))
    };
    if let Err(refusal) = check_has_key(config.key.is_some(), welcome.has_key) {
        return unfit(refusal, false);
    }
    let keys = match &config.key {
        None => None,
        Some(key) => {
            let Some(shared) = key.end(ephemeral, split(hello).0).finish(&welcome.answer) else {
                return unfit(Refusal::KeyDiffers, false);
            };
            let keys = SessionKeys::new(&shared);
            let tag = welcome_tag(&keys, session, payload.first_chunk()?, hello);
            // Another tag means that the WELCOME was changed on its way.
            if !is_equal(&tag, &welcome.tag) {
                return None;
            }
            Some(keys)
        }
    };
    let is_wanted = |name: &Name| config.next.as_ref().is_none_or(|wanted| wanted == name);
    if !is_wanted(&welcome.node.name) {
        let wanted = config.next.clone().unwrap_or_default();
        return unfit(Refusal::Elsewhere { wanted }, config.key.is_some());
    }
    if let Err(refusal) = config.node.check_next(&welcome.node) {
        return unfit(refusal, config.key.is_some());
    }
    let mut confirm = Confirm { hello: *hello, welcome_nonce: welcome.nonce, tag: Tag::default() };
    if let Some(keys) = &keys {
        confirm.tag = confirm_tag(keys, session, &confirm);
    }
    let mut out = [0; CONFIRM_LEN];
    confirm.emit(&mut out);
    let (instance, peer) = (welcome.instance, welcome.node);
    Some(Ok((Agreed { id: session, keys, from, instance, resume: 0, peer }, out)))
}

/// The sessions that a listener offers.
pub(super) struct Offers {
    secret: [u8; 32],
    instance: u64,
}

/// A listener's verdict on a HELLO.
pub(super) enum Judged {
    /// The peer fits.
    Fits(Hello),
    /// The peer does not fit. The connector, which sent this nonce and name, is to be told.
    Refused(Nonce, Refusal, Name),
    /// The bytes are no HELLO.
    Nonsense,
}

impl Offers {
    pub(super) fn new(secret: [u8; 32], instance: u64) -> Offers {
        Offers { secret, instance }
    }

    /// Compares a HELLO with this node.
    pub(super) fn judge(&self, config: &LinkConfig, bytes: &[u8]) -> Judged {
        if let Some((prev, nonce)) = Hello::stranger(bytes) {
            return Judged::Refused(nonce, Refusal::Version { prev, next: PROTOCOL }, Name::new());
        }
        let (Ok(hello), Some(raw)) = (Hello::parse(bytes), bytes.first_chunk()) else {
            return Judged::Nonsense;
        };
        let is_named = hello.to == config.node.name && !hello.to.is_empty();
        // A ring of one node is its own next node: by name, or because its user gave it all layers. Any other HELLO of
        // this run was sent back to its sender.
        let is_own_next = is_named || config.node.wish == Some(0..config.node.n_layers);
        if hello.instance == config.run && !is_own_next {
            return Judged::Nonsense;
        }
        let check = || {
            check_has_key(hello.has_key, config.key.is_some())?;
            let (seen, greeting) = split(raw);
            if let Some(key) = &config.key
                && !key.end(&Ephemeral::default(), seen).is_greeted(greeting)
            {
                return Err(Refusal::KeyDiffers);
            }
            if !hello.to.is_empty() && !is_named {
                return Err(Refusal::Elsewhere { wanted: hello.to.clone() });
            }
            hello.node.check_next(&config.node)?;
            match &config.prev {
                Some(wanted) if *wanted != hello.node.name => {
                    Err(Refusal::Stray { wanted: wanted.clone() })
                }
                _ => Ok(()),
            }
        };
        match check() {
            Ok(()) => Judged::Fits(hello),
            Err(refusal) => Judged::Refused(hello.nonce, refusal, hello.node.name),
        }
    }

    /// Session, nonce and ephemeral key of the offer that answers this HELLO from this address.
    fn derive(&self, from: SocketAddr, hello: &[u8; HELLO_LEN]) -> (u64, Nonce, Ephemeral) {
        let ip = match from.ip().to_canonical() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(ip) => ip.octets(),
        };
        let parts: [&[u8]; 3] = [&ip, &from.port().to_le_bytes(), hello];
        let bytes: [u8; 24] = derive(&self.secret, "LEAP offer", &parts);
        let (session, nonce) = bytes.split_at(8);
        let session = u64::from_le_bytes(session.try_into().expect("split at 8"));
        let nonce = nonce.try_into().expect("24 - 8 bytes are left");
        (session.max(1), nonce, derive(&self.secret, "LEAP ephemeral", &parts))
    }

    /// The offer for a HELLO that fits: the session's number, and the WELCOME. `None` if the greeting leads to no keys.
    pub(super) fn welcome(
        &self,
        config: &LinkConfig,
        from: SocketAddr,
        hello: &[u8; HELLO_LEN],
        hello_nonce: Nonce,
    ) -> Option<(u64, [u8; WELCOME_LEN])> {
        let (session, nonce, ephemeral) = self.derive(from, hello);
        let welcome = Welcome {
            has_key: config.key.is_some(),
            n_banks: config.n_banks as u32,
            instance: self.instance,
            hello_nonce,
            nonce,
            node: config.node.clone(),
            answer: [0; MESSAGE_LEN],
            tag: Tag::default(),
        };
        let mut bytes = [0; WELCOME_LEN];
        welcome.emit(&mut bytes);
        if let Some(key) = &config.key {
            let (seen, greeting) = split(hello);
            let (answer, shared) = key.end(&ephemeral, seen).answer(greeting)?;
            bytes[WELCOME_SEEN..WELCOME_TAGGED].copy_from_slice(&answer);
            let tag = welcome_tag(&SessionKeys::new(&shared), session, &bytes, hello);
            bytes[WELCOME_TAGGED..].copy_from_slice(&tag);
        }
        Some((session, bytes))
    }

    /// The session that a CONFIRM takes, if it was offered and no session was taken since.
    pub(super) fn confirm(
        &self,
        config: &LinkConfig,
        (from, session): (SocketAddr, u64),
        payload: &[u8],
    ) -> Option<Agreed> {
        let confirm = Confirm::parse(payload).ok()?;
        let (offered, nonce, ephemeral) = self.derive(from, &confirm.hello);
        if (offered, nonce) != (session, confirm.welcome_nonce) {
            return None;
        }
        let Judged::Fits(hello) = self.judge(config, &confirm.hello) else { return None };
        let (seen, greeting) = split(&confirm.hello);
        let keys = match &config.key {
            None => None,
            Some(key) => {
                let (_, shared) = key.end(&ephemeral, seen).answer(greeting)?;
                Some(SessionKeys::new(&shared))
            }
        };
        if let Some(keys) = &keys
            && !is_equal(&confirm_tag(keys, session, &confirm), &confirm.tag)
        {
            return None;
        }
        let (instance, resume) = (hello.instance, hello.resume);
        Some(Agreed { id: session, keys, from, instance, resume, peer: hello.node })
    }

    /// Makes all offers so far invalid.
    pub(super) fn renew(&mut self, secret: [u8; 32]) {
        self.secret = secret;
    }
}
