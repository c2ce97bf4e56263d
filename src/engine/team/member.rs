//! A member's loop: follows its lead, and outlives leads.

use std::fmt;

use super::error::TeamStartError;
use super::lead::has_whole;
use super::passes::{Gathering, line};
use crate::engine::ring::{Limits, NodeError, frames};
use crate::group::Notice;
use crate::model::{Batch, ForwardError, Plan, Share, Span, Stage, StageInfo, Team, Transformer};
use crate::team::{Member, Mesh, NodeLine, Opening, Order, Work};
use crate::wire::hello;

/// Options of a team's member.
pub struct MemberOptions<'a> {
    /// Name of the member.
    pub name: &'a str,
    /// Maximum sizes that the member accepts.
    pub limits: Limits,
    /// Polled regularly; true ends the work.
    pub is_interrupted: fn() -> bool,
}

/// An event at a member.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberNotice {
    /// The member is ready for the lead with this name, and computes this percentage of the model.
    Ready(String, f64),
    /// The member has told the lead why it is not ready.
    Refuses(String),
    /// Another node is lost, or the lead has started again.
    Over(String),
    /// The lead has gone.
    LeadLeft,
    /// Another node does not fit this one.
    Unfit(Notice),
}

impl fmt::Display for MemberNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberNotice::Ready(lead, percent) => {
                write!(f, "computes {percent:.0} % of each layer for {lead}")
            }
            MemberNotice::Refuses(why) => f.write_str(why),
            MemberNotice::Over(why) => write!(f, "{why}; waiting for the lead"),
            MemberNotice::LeadLeft => f.write_str("the lead left; waiting for the next one"),
            MemberNotice::Unfit(notice) => notice.fmt(f),
        }
    }
}

/// Works for any lead over `mesh` until it is interrupted. `transformer` holds the largest part that a team
/// can need, with prepared weights.
///
/// # Errors
/// If the weights do not match their checksums.
pub fn run_member(
    transformer: &mut Transformer,
    mesh: Mesh,
    options: &MemberOptions<'_>,
    tell: &mut dyn FnMut(&MemberNotice),
) -> Result<(), NodeError> {
    let MemberOptions { name, is_interrupted, .. } = *options;
    transformer.check_weights(&is_interrupted).map_err(NodeError::Weights)?;
    let mut member = Member::new(mesh, name);
    member.interrupt_by(is_interrupted);
    let mut at_work = AtWork {
        prepared: transformer.about().share.clone(),
        transformer,
        name,
        limits: options.limits,
        ready: None,
        batch: Batch::with_capacity(options.limits.max_batch),
        spans: Vec::with_capacity(options.limits.max_batch),
    };
    loop {
        let mut unfit = |notice: &Notice| tell(&MemberNotice::Unfit(notice.clone()));
        let Ok(order) = member.next(&is_interrupted, &mut unfit) else { break };
        match order {
            Order::Open(opening) => match at_work.open(&opening) {
                Ok(line) => {
                    member.ready(line);
                    let percent = at_work.percent();
                    tell(&MemberNotice::Ready(opening.lead.to_string(), percent));
                }
                Err(why) => {
                    member.refuse(&why);
                    tell(&MemberNotice::Refuses(why));
                }
            },
            Order::Pass(work) => {
                if let Err(error) = at_work.run(work, &mut member) {
                    if error == ForwardError::Interrupted {
                        break;
                    }
                    member.fail();
                    tell(&MemberNotice::Over(error.to_string()));
                }
            }
            Order::Pages => {
                if let Err(error) = at_work.change_pages(&member) {
                    member.fail();
                    tell(&MemberNotice::Over(error.to_string()));
                }
            }
            Order::Close => tell(&MemberNotice::LeadLeft),
        }
    }
    Ok(())
}

/// The model and buffers of a member at work.
struct AtWork<'a> {
    transformer: &'a mut Transformer,
    /// Share whose weights are ready.
    prepared: Share,
    name: &'a str,
    limits: Limits,
    /// The opening that the member is ready for, without the lead's name.
    ready: Option<Opening>,
    batch: Batch,
    spans: Vec<Span>,
}

impl AtWork<'_> {
    /// Prepares for an opening. Returns the member's line, or the reason why it cannot take part.
    fn open(&mut self, opening: &Opening) -> Result<NodeLine, String> {
        let (plan, Limits { ctx_len, n_streams, max_batch }) = (plan(opening), self.limits);
        let pages_max = self.limits.pages_max();
        for (what, wanted, limit) in [
            ("a context of", plan.ctx_len, ctx_len),
            ("streams,", plan.n_streams, n_streams),
            ("rows of a batch,", plan.max_batch, max_batch),
            ("logits of a batch,", plan.max_logits, max_batch),
            ("pages of keys and values,", opening.sizes.n_pages as usize, pages_max),
        ] {
            if wanted > limit {
                return Err(format!("it is ready for {what} {limit}, not {wanted}"));
            }
        }
        let layers = opening.layers.start as usize..opening.layers.end as usize;
        let share = Share { layers, has_ends: opening.has_ends };
        if !self.prepared.includes(&share) {
            let (has, wants) = (words(&self.prepared), words(&share));
            return Err(format!("it has {has}, not {wants}: give all the same ring file"));
        }
        let asked = Some(Opening { lead: hello::Name::new(), ..opening.clone() });
        if self.ready != asked {
            self.ready = None;
            self.get_ready(opening, share, plan).map_err(|e| e.to_string())?;
            self.ready = asked;
        }
        Ok(line(self.transformer, self.name))
    }

    fn get_ready(
        &mut self,
        opening: &Opening,
        share: Share,
        plan: Plan,
    ) -> Result<(), TeamStartError> {
        let own = usize::from(opening.node);
        let header = self.transformer.model().header();
        let team = Team::new(header, &opening.shares, own).map_err(TeamStartError::Shares)?;
        if header.slice().is_some_and(|slice| slice != team.own()) {
            return Err(TeamStartError::Rows);
        }
        let team = team.with_wire(frames::precision(opening.sizes.wire));
        let StageInfo { share: now, .. } = self.transformer.about();
        if share != *now {
            self.transformer.set_share(share, plan).map_err(TeamStartError::Start)?;
        }
        self.transformer.set_team(Some(team), plan).map_err(TeamStartError::Start)
    }

    /// Percentage of each layer that this node computes.
    fn percent(&self) -> f64 {
        let Some(Opening { shares, node, .. }) = &self.ready else { return 0.0 };
        let total: u32 = shares.iter().map(|share| u32::from(*share)).sum();
        f64::from(shares[usize::from(*node)]) / f64::from(total.max(1)) * 1e2
    }

    /// Changes the streams' pages that the lead names.
    fn change_pages(&mut self, member: &Member) -> Result<(), ForwardError> {
        let mut pages = member.pages().iter().map(frames::from_page);
        match pages.all(|page| self.transformer.change_page(&page)) {
            true => Ok(()),
            false => Err(ForwardError::Plan),
        }
    }

    /// Computes this node's part of the work that the lead has announced.
    fn run(&mut self, work: Work, member: &mut Member) -> Result<(), ForwardError> {
        let (transformer, spans) = (&mut *self.transformer, &mut self.spans);
        spans.clear();
        spans.extend(member.spans().iter().map(frames::from_frame));
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        match work {
            // The member's line has told the lead that it cannot embed.
            Work::Ids if transformer.model().header().slice().is_some() => {
                return Err(ForwardError::Plan);
            }
            Work::Ids => {
                frames::batch(member.spans(), member.tokens(), &mut self.batch);
                transformer.embed(&self.batch)?;
            }
            Work::Rows => transformer.share_rows(n_rows, &mut Gathering(member))?,
            Work::Logits(n) => {
                let gather = &mut Gathering(member);
                return transformer.classify_in_team(n.into(), None, gather).map(|_| ());
            }
        }
        let gather = &mut Gathering(member);
        transformer.run_layers_in_team(spans, gather)?;
        match has_whole(transformer) {
            true => transformer.logits_in_team(spans, gather).map(|_| ()),
            false => Ok(()),
        }
    }
}

/// Text that describes a share: its layers, and whether it has both ends.
fn words(share: &Share) -> String {
    let ends = if share.has_ends { " and both ends" } else { "" };
    format!("layers {}..{}{ends}", share.layers.start, share.layers.end)
}

/// The plan of a lead's opening.
fn plan(opening: &Opening) -> Plan {
    frames::plan(&opening.sizes)
}
