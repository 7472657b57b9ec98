//! All reservations of a network, and changes to them that happen as a whole or not at all.

use super::load::{Flows, Load, grown};
use super::network::{Link, Network};
use super::refusal::PathRefusal;
use super::request::{Grant, Hop, MOST_HOPS, MOST_ROUTES, Request, Route};
use crate::frame::VLAN_TAG;
use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A reservation that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reserve {
    /// Name, unique among reservations.
    pub path: String,
    /// The flow.
    pub request: Request,
    /// Ways that it may take, 1 to [`MOST_ROUTES`]; the first that fits is taken.
    pub routes: Vec<Route>,
}

/// What is reserved at a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Usage {
    /// Its name.
    pub link: String,
    /// The sum of the rates, with tags and overhead (bit/s).
    pub reserved_bits: u64,
    /// The most that may be reserved.
    pub reservable: Rate,
    /// Delays that the levels need; each is at most the fixed one.
    pub needed: Vec<Nanos>,
}

/// All reservations of a network.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    network: Network,
    /// What is reserved, by index of the link.
    loads: Vec<Load>,
    reservations: BTreeMap<String, Reservation>,
}

#[derive(Clone, Debug)]
struct Reservation {
    request: Request,
    level: usize,
    /// Indices of its links, each with what the flow counts there.
    hops: Vec<(usize, Flows)>,
    route: Route,
}

impl Ledger {
    /// Makes a ledger without reservations.
    pub fn new(network: Network) -> Self {
        let loads = vec![Load::default(); network.links().len()];
        Self { network, loads, reservations: BTreeMap::new() }
    }

    /// Returns the network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns a reservation.
    pub fn get(&self, path: &str) -> Option<(&Request, &Route)> {
        self.reservations.get(path).map(|reservation| (&reservation.request, &reservation.route))
    }

    /// Returns the names of all reservations, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.reservations.keys().map(String::as_str)
    }

    /// Releases and reserves, all or nothing. Returns for each of `reserve` the number of the route that it takes, and the
    /// grant.
    ///
    /// # Errors
    /// Of the first path that does not fit, why each of its routes was refused. Nothing has changed then.
    pub fn change(
        &mut self,
        release: &[String],
        reserve: &[Reserve],
    ) -> Result<Vec<(usize, Grant)>, Vec<PathRefusal>> {
        let mut released = Vec::with_capacity(release.len());
        let mut granted = Vec::with_capacity(reserve.len());
        let result = self.try_change(release, reserve, &mut released, &mut granted);
        if result.is_err() {
            for wanted in &reserve[..granted.len()] {
                self.take_out(&wanted.path);
            }
            for (path, reservation) in released {
                self.put_in(path, reservation);
            }
        }
        result.map(|()| granted)
    }

    fn try_change(
        &mut self,
        release: &[String],
        reserve: &[Reserve],
        released: &mut Vec<(String, Reservation)>,
        granted: &mut Vec<(usize, Grant)>,
    ) -> Result<(), Vec<PathRefusal>> {
        for path in release {
            let reservation =
                self.take_out(path).ok_or_else(|| vec![PathRefusal::Unknown { path: path.clone() }])?;
            released.push((path.clone(), reservation));
        }
        for wanted in reserve {
            granted.push(self.reserve(wanted)?);
        }
        Ok(())
    }

    fn reserve(&mut self, wanted: &Reserve) -> Result<(usize, Grant), Vec<PathRefusal>> {
        let path = || wanted.path.clone();
        if self.reservations.contains_key(&wanted.path) {
            return Err(vec![PathRefusal::Exists { path: path() }]);
        }
        let Request { smallest_frame, largest_frame, burst, .. } = wanted.request;
        if !wanted.request.is_sound() {
            return Err(vec![PathRefusal::Request { path: path(), smallest_frame, largest_frame, burst }]);
        }
        let routes = wanted.routes.len();
        if routes > MOST_ROUTES {
            return Err(vec![PathRefusal::Routes { path: path(), routes }]);
        }
        let mut refusals = Vec::new();
        for (number, route) in wanted.routes.iter().enumerate() {
            match self.judge(&wanted.path, &wanted.request, route) {
                Ok((reservation, grant)) => {
                    self.put_in(path(), reservation);
                    return Ok((number, grant));
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        Err(if refusals.is_empty() { vec![PathRefusal::NoRoute { path: path() }] } else { refusals })
    }

    /// Tells whether a flow fits into each link of a route.
    fn judge(
        &self,
        path: &str,
        request: &Request,
        route: &Route,
    ) -> Result<(Reservation, Grant), PathRefusal> {
        let links = self.links(path, request, route)?;
        let level = usize::from(route.level);
        let (mut jitter, mut propagation) = (0u64, 0u64);
        let (mut hops, mut granted) = (Vec::with_capacity(links.len()), Vec::with_capacity(links.len()));
        for (index, link) in links {
            let delay = link.levels[level].delay;
            let flows = Flows::of(request, jitter, delay.get(), link);
            let mut load = self.loads[index];
            load.add(level, &flows);
            if let Some(limit) = load.exceeded(link) {
                let link = link.name.clone();
                return Err(PathRefusal::Link { path: path.into(), link, route_level: route.level, limit });
            }
            granted.push(Hop {
                link: link.name.clone(),
                delay,
                needed: Nanos::new(load.needed(level, link)),
                burst: bytes(grown(request, jitter)),
            });
            hops.push((index, flows));
            jitter = jitter.saturating_add(delay.get());
            propagation = propagation.saturating_add(link.propagation.get());
        }
        let bound = Nanos::new(jitter.saturating_add(propagation));
        if bound > request.budget {
            let (path, budget) = (path.into(), request.budget);
            return Err(PathRefusal::Budget { path, hops: hops.len(), level: route.level, bound, budget });
        }
        let grant = Grant { bound, burst: bytes(grown(request, jitter)), hops: granted };
        Ok((Reservation { request: *request, level, hops, route: route.clone() }, grant))
    }

    /// Returns the links of a route, which are there, meet, and carry the flow's frames.
    fn links(
        &self,
        path: &str,
        request: &Request,
        route: &Route,
    ) -> Result<Vec<(usize, &Link)>, PathRefusal> {
        let path = || path.to_owned();
        let hops = route.links.len();
        if !(1..=MOST_HOPS).contains(&hops) {
            return Err(PathRefusal::Length { path: path(), hops });
        }
        let mut links: Vec<(usize, &Link)> = Vec::with_capacity(hops);
        for name in &route.links {
            let missing = || PathRefusal::NoLink { path: path(), link: name.clone() };
            let index = self.network.index(name).ok_or_else(missing)?;
            let link = &self.network.links()[index];
            if let Some((_, last)) = links.last().filter(|(_, last)| last.to != link.from) {
                let (from, to) = (link.from.clone(), last.to.clone());
                return Err(PathRefusal::Apart { path: path(), link: name.clone(), from, to });
            }
            if let Some(node) = links.iter().find(|(_, before)| before.from == link.to) {
                return Err(PathRefusal::Loop { path: path(), node: node.1.from.clone() });
            }
            if usize::from(route.level) >= link.levels.len() {
                let (level, levels) = (route.level, link.levels.len());
                return Err(PathRefusal::NoLevel { path: path(), link: name.clone(), level, levels });
            }
            let needed = Bytes::new(request.largest_frame.get() + VLAN_TAG);
            if needed > link.largest_frame {
                let (link, available) = (name.clone(), link.largest_frame);
                return Err(PathRefusal::Mtu { path: path(), link, needed, available });
            }
            links.push((index, link));
        }
        Ok(links)
    }

    fn put_in(&mut self, path: String, reservation: Reservation) {
        for (index, flows) in &reservation.hops {
            self.loads[*index].add(reservation.level, flows);
        }
        self.reservations.insert(path, reservation);
    }

    fn take_out(&mut self, path: &str) -> Option<Reservation> {
        let reservation = self.reservations.remove(path)?;
        for (index, flows) in &reservation.hops {
            self.loads[*index].remove(reservation.level, flows);
        }
        Some(reservation)
    }

    /// Returns what is reserved at each link, in the order of the links.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.network.links().iter().zip(&self.loads).map(|(link, load)| Usage {
            link: link.name.clone(),
            reserved_bits: u64::try_from(load.rate()).unwrap_or(u64::MAX),
            reservable: link.reservable,
            needed: (0..link.levels.len()).map(|level| Nanos::new(load.needed(level, link))).collect(),
        })
    }
}

/// Returns bits as bytes, rounded up.
fn bytes(bits: u128) -> Bytes {
    Bytes::new(u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX))
}
