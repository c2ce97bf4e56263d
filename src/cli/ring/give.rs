//! Other boards get their layers from this one.

use std::path::Path;

use crate::cli::{Failure, note, warn};
use crate::fetch::giver::{self, Content, Gift};
use crate::fleet::settings::Settings;
use crate::format::model::{Header, Slice};
use crate::model::{Model, Team};
use crate::ring::Place;
use crate::transport::place::HostPort;
use crate::wire::give::Rows;

/// Gives the layers of the model file at `path` on `port`, for as long as the process lives.
pub(super) fn start(
    (settings, place): (&Settings, &Place),
    port: u16,
    path: Option<&Path>,
    model: &Model,
) -> Result<(), Failure> {
    let Some(key) = settings.links.key.clone() else {
        return Err(Failure::Usage(
            "--give needs --key: only boards with the key get the model".to_owned(),
        ));
    };
    let Some(path) = path else {
        return Err(Failure::Usage(
            "--give needs a model file; the built-in model is in every board's program".to_owned(),
        ));
    };
    let fingerprint = model.fingerprint();
    let content = fingerprint.and_then(|of| Content::open(path, model.file().header(), of, cut));
    let content = content.map_err(|e| Failure::unreadable(path, &e))?;
    let address = HostPort::new(&place.listen.host, port).resolve(|_| true);
    let address = address.map_err(|e| Failure::runtime(&e))?;
    let is_quiet = settings.is_quiet;
    let tell = move |gift: &Gift| match gift {
        Gift::Refused { .. } => warn(&words(gift)),
        _ if is_quiet => {}
        _ => note(&format!("leap: {}", words(gift))),
    };
    let bound = giver::start(content, address, key, Box::new(tell));
    let bound = bound
        .map_err(|e| Failure::Runtime(format!("cannot give layers on {address} (TCP): {e}")))?;
    if !settings.is_quiet {
        note(&format!("leap: gives boards their layers on {bound} (TCP)"));
    }
    Ok(())
}

/// Which rows a node of a team has.
pub(super) fn cut(header: &Header, rows: &Rows) -> Result<Slice, String> {
    let team = Team::new(header, &rows.shares, rows.own.into()).map_err(|e| e.to_string())?;
    Ok(team.own().clone())
}

fn words(gift: &Gift) -> String {
    match gift {
        Gift::Begun { name, from, layers, has_all_rows } => {
            let rows = if *has_all_rows { "" } else { "its rows of " };
            format!("gives {rows}layers {}..{} to {name} at {from}", layers.start, layers.end)
        }
        Gift::Refused { name, from, why } => format!("gives nothing to {name} at {from}: {why}"),
        Gift::Stranger { from, why } => format!("gives nothing to {from}: {why}"),
    }
}
