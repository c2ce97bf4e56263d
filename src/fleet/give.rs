//! Gives other boards their layers.

use std::path::Path;
use std::sync::Arc;

use super::error::{Aim, PartError};
use super::events::Event;
use super::settings::Settings;
use crate::fetch::giver::{self, Content, Gift};
use crate::format::model::{Header, Slice};
use crate::model::{Model, Team};
use crate::transport::place::HostPort;
use crate::wire::give::Rows;

/// Gives the layers of the model file at `path` on `port` of `host`, for as long as the process lives.
///
/// # Errors
/// Without a key or a file, or if the system refuses the port.
pub(crate) fn start(
    settings: &Settings,
    (host, port): (&str, u16),
    path: Option<&Path>,
    model: &Model,
) -> Result<(), PartError> {
    let key = settings.links.key.clone().ok_or(PartError::NoKey(Aim::Give))?;
    let path = path.ok_or(PartError::NoFile)?;
    let fingerprint = model.fingerprint();
    let content = fingerprint.and_then(|of| Content::open(path, model.file().header(), of, cut));
    let content = content.map_err(|e| PartError::Unreadable(path.to_owned(), e))?;
    let address =
        HostPort::new(host, port).resolve_to_listen(|| false).map_err(PartError::Links)?;
    let events = Arc::clone(&settings.events);
    let tell = move |gift: &Gift| events.tell(&Event::Gift(gift));
    let bound = giver::start(content, address, key, Box::new(tell));
    let bound = bound.map_err(|source| PartError::Listen { aim: Aim::Give, address, source })?;
    settings.events.tell(&Event::Gives { at: bound });
    Ok(())
}

/// The rows that a node of a team has.
pub(super) fn cut(header: &Header, rows: &Rows) -> Result<Slice, String> {
    let team = Team::new(header, &rows.shares, rows.own.into()).map_err(|e| e.to_string())?;
    Ok(team.own().clone())
}
