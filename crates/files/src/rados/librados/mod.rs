//! A pool of Ceph RADOS, by way of its own client library.
//!
//! The library is loaded when the first pool is named (`library`), so that one binary runs everywhere. Its operations have
//! no thread each: they are submitted on the loop, and the library calls back from a thread of its own, which does no more
//! than to hand the outcome to the loop. What an operation needs in memory lives until then, whoever stops waiting.
//!
//! A connection lives as long as the process, and all loops that name the same cluster as the same user share it.

mod library;
mod operation;

use std::cell::Cell;
use std::ffi::CString;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{AlignedBuf, Error, Instant, Result};
use runtime::Handle;

use self::library::{Cluster, Context, Library, c_text};
use super::StorePools;
use super::objects::{Change, Copy, Failure, Look, Objects};
use crate::LocalBoxFuture;

/// An operation without an answer for so long has failed: several times what a cluster takes to go on without an OSD, and no
/// longer than a client of a volume has patience with its disk.
const PATIENCE_SECONDS: u32 = 30;
/// The same for monitors, and for the first connection.
const MONITOR_PATIENCE_SECONDS: u32 = 10;
/// With more than this in flight the library would hold up the loop that submits. What a loop has in flight is bounded by its
/// memory, far below.
const IN_FLIGHT_OPS: u32 = 1 << 16;
const IN_FLIGHT_BYTES: u64 = 4 << 30;
/// The size of the pool is asked for so often at most.
const CAPACITY_FOR: Duration = Duration::from_secs(10);

/// Which pool, and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The pool.
    pub pool: String,
    /// The pool of data files, if that is another one; the namespace is the same.
    pub data: Option<String>,
    /// The namespace in it: a store has one of its own.
    pub namespace: String,
    /// The configuration of the cluster; by default what `CEPH_CONF` names, or /etc/ceph/ceph.conf.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub user: String,
}

/// The namespace and user where none is named.
const NAMESPACE: &str = "levee";
const USER: &str = "admin";

impl Place {
    /// What `rados:POOL[/NAMESPACE][?data=POOL][&conf=FILE][&user=NAME]` names.
    ///
    /// # Errors
    /// What is wrong with it, and an example.
    pub fn parse(text: &str) -> std::result::Result<Place, String> {
        const EXAMPLE: &str = "write rados:POOL, or rados:POOL/NAMESPACE?data=POOL&conf=/etc/ceph/ceph.conf&user=levee";
        let wrong = |what: &str| Err(format!("'{text}': {what}: {EXAMPLE}"));
        let Some(rest) = text.strip_prefix("rados:") else { return wrong("it is no pool") };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (pool, namespace) = path.split_once('/').unwrap_or((path, NAMESPACE));
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', '\0']);
        if !is_name(pool) || !is_name(namespace) {
            return wrong("a pool and a namespace have a name each, without a slash");
        }
        let (mut data, mut conf, mut user) = (None, None, USER.to_owned());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("data", other)) if is_name(other) && other != pool => data = Some(other.to_owned()),
                Some(("conf", file)) if is_name(&file.replace('/', "-")) => conf = Some(PathBuf::from(file)),
                Some(("user", name)) if is_name(name) => user = name.strip_prefix("client.").unwrap_or(name).to_owned(),
                _ => return wrong(&format!("'{pair}' is neither data=POOL (another one) nor conf=FILE nor user=NAME")),
            }
        }
        Ok(Place { pool: pool.into(), data, namespace: namespace.into(), conf, user })
    }

    /// As a person writes it.
    pub fn shown(&self) -> String {
        let data = self.data.as_ref().map_or_else(String::new, |data| format!("?data={data}"));
        shown(&self.pool, &self.namespace) + &data
    }
}

/// A connection to a cluster, by what it was made with.
type Known = (Option<PathBuf>, String, Arc<Cluster>);

static CLUSTERS: Mutex<Vec<Known>> = Mutex::new(vec![]);

/// Reaches the pools at a place.
///
/// # Errors
/// What is wrong, and what to do: the library is not there or too old, the cluster cannot be reached, the user may not, there
/// is no such pool, or what a pool for data files has to allow is not allowed.
pub async fn open(handle: &Handle, place: Place) -> Result<StorePools> {
    let named = |pool: &String| Named { place: place.clone(), pool: pool.clone() };
    let data = match &place.data {
        Some(pool) => Some(open_pool(handle, named(pool), true).await?),
        None => None,
    };
    Ok(StorePools { main: open_pool(handle, named(&place.pool), false).await?, data })
}

async fn open_pool(handle: &Handle, named: Named, is_for_data: bool) -> Result<Rc<dyn Objects>> {
    let wanted = named.clone();
    let reached = handle.offload(Duration::from_millis(100), move || {
        let (cluster, context) = reach(&wanted)?;
        let has_copies = !is_for_data || has_copies(&wanted, &cluster)?;
        Ok::<_, Error>((cluster, context, has_copies))
    });
    let (cluster, context, has_copies) = reached.await?;
    let (handle, named) = (handle.clone(), Rc::new(named));
    Ok(Rc::new(Pool { handle, named, cluster, context, has_copies, capacity: Rc::default() }))
}

/// One of the pools of a place.
#[derive(Clone)]
struct Named {
    place: Place,
    pool: String,
}

impl Named {
    fn shown(&self) -> String {
        shown(&self.pool, &self.place.namespace)
    }
}

fn shown(pool: &str, namespace: &str) -> String {
    format!("rados:{pool}/{namespace}")
}

fn reach(named: &Named) -> Result<(Arc<Cluster>, Context)> {
    let (library, Named { place, pool }) = (Library::get()?, named);
    let mut clusters = CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = clusters.iter().find(|(conf, user, _)| *conf == place.conf && *user == place.user);
    let cluster = match known {
        Some((.., cluster)) => cluster.clone(),
        None => {
            let cluster = Arc::new(connect(library, place)?);
            clusters.push((place.conf.clone(), place.user.clone(), cluster.clone()));
            cluster
        }
    };
    let context = cluster.context(&text(pool)?, &text(&place.namespace)?).map_err(|code| match -code {
        libc::ENOENT => Error::not_found(format!(
            "there is no pool {pool}: make it (ceph osd pool create {pool}), or name another one"
        )),
        libc::EPERM | libc::EACCES => refused(place),
        code => reached(place, code),
    })?;
    Ok((cluster, context))
}

/// Whether a pool keeps copies; one with erasure coding has to allow that something is written at any place.
fn has_copies(named: &Named, cluster: &Cluster) -> Result<bool> {
    let (answer, pool) = (cluster.ask(&c_text(POOLS)).map_err(|code| reached(&named.place, -code))?, &named.pool);
    match coding_of(pool, &answer) {
        Some(Coding::Copies) => Ok(true),
        Some(Coding::Erasure { may_overwrite: true }) => Ok(false),
        Some(Coding::Erasure { may_overwrite: false }) => Err(Error::invalid(format!(
            "the pool {pool} has erasure coding, and does not allow writes at any place: \
             ceph osd pool set {pool} allow_ec_overwrites true"
        ))),
        None => Err(Error::io(format!("a monitor does not say what the pool {pool} is like: try again"))),
    }
}

fn connect(library: &'static Library, place: &Place) -> Result<Cluster> {
    let mut cluster = library.cluster(&text(&place.user)?).map_err(|code| reached(place, -code))?;
    let conf = place.conf.as_ref().map(|conf| text(&conf.display().to_string())).transpose()?;
    cluster.read_conf(conf.as_deref()).map_err(|code| {
        let shown =
            place.conf.as_ref().map_or("/etc/ceph/ceph.conf (or CEPH_CONF)".into(), |conf| conf.display().to_string());
        let why = std::io::Error::from_raw_os_error(-code);
        Error::invalid(format!(
            "the configuration of the cluster, {shown}, cannot be read ({why}): name it with ?conf=FILE"
        ))
    })?;
    let (patience, monitor) = (PATIENCE_SECONDS.to_string(), MONITOR_PATIENCE_SECONDS.to_string());
    let (ops, bytes) = (IN_FLIGHT_OPS.to_string(), IN_FLIGHT_BYTES.to_string());
    let settings = [
        ("rados_osd_op_timeout", &patience),
        ("rados_mon_op_timeout", &monitor),
        ("client_mount_timeout", &monitor),
        ("objecter_inflight_ops", &ops),
        ("objecter_inflight_op_bytes", &bytes),
    ];
    for (name, value) in settings {
        cluster.set(&text(name)?, &text(value)?).map_err(|code| reached(place, -code))?;
    }
    cluster.connect().map_err(|code| match -code {
        libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOENT => refused(place),
        code => reached(place, code),
    })?;
    Ok(cluster)
}

fn refused(place: &Place) -> Error {
    let Place { user, namespace, .. } = place;
    let may = [Some(&place.pool), place.data.as_ref()];
    let may = may.iter().flatten().map(|pool| format!("allow rwx pool={pool} namespace={namespace}"));
    Error::invalid(format!(
        "the cluster refuses client.{user}: name a user with ?user=NAME, with a key in the keyring that ceph.conf names, who may \
         (ceph auth get-or-create client.{user} mon 'allow r' osd '{}')",
        may.collect::<Vec<_>>().join(", ")
    ))
}

fn reached(place: &Place, code: i32) -> Error {
    let why = std::io::Error::from_raw_os_error(code);
    Error::io(format!(
        "the cluster of {} cannot be reached ({why}): do its monitors run, and are they reached from here?",
        place.shown()
    ))
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} has a zero byte")))
}

/// A namespace of a pool.
struct Pool {
    handle: Handle,
    named: Rc<Named>,
    cluster: Arc<Cluster>,
    context: Context,
    has_copies: bool,
    /// When the size was asked for, and what it was.
    capacity: Rc<Cell<Option<(Instant, u64)>>>,
}

impl Pool {
    fn failure(Named { place, pool }: &Named, code: i32) -> Failure {
        let why = || std::io::Error::from_raw_os_error(-code);
        match -code {
            libc::EEXIST => Failure::Exists,
            libc::ENOENT => Failure::Absent,
            libc::ECANCELED => Failure::Changed,
            libc::ENOSPC | libc::EDQUOT => Failure::Other(Error::full(format!(
                "the pool {pool} is full: add OSDs, raise its quota, or delete something"
            ))),
            libc::EPERM | libc::EACCES => Failure::Other(refused(place)),
            libc::EOPNOTSUPP => Failure::Other(Error::invalid(format!(
                "the pool {pool} keeps no entries, as one with erasure coding: name one with copies, and this one for data files \
                 (rados:POOL?data={pool})"
            ))),
            libc::ETIMEDOUT => Failure::Other(Error::io(format!(
                "the pool {pool} has not answered for {PATIENCE_SECONDS} s: ceph -s says what is wrong"
            ))),
            _ => Failure::Other(Error::io(format!("the pool {pool}: {}", why()))),
        }
    }
}

impl Objects for Pool {
    fn name(&self) -> String {
        self.named.shown()
    }

    fn change(&self, object: &str, change: Change) -> LocalBoxFuture<'static, Result<(), Failure>> {
        let done = operation::change(&self.context, object, &change);
        let named = self.named.clone();
        Box::pin(async move { done.await.map_err(|code| Pool::failure(&named, code)) })
    }

    fn read(
        &self,
        object: &str,
        offset: u64,
        len: usize,
        copy: Copy,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf, Failure>> {
        let read = match copy {
            Copy::First => operation::read(&self.context, object, offset, len),
            Copy::Any => operation::read_any(&self.context, object, offset, len),
        };
        let named = self.named.clone();
        Box::pin(async move { read.await.map_err(|code| Pool::failure(&named, code)) })
    }

    fn look(&self, object: &str, after: &str, max: usize) -> LocalBoxFuture<'static, Result<Look, Failure>> {
        let look = operation::look(&self.context, object, after, max);
        let named = self.named.clone();
        Box::pin(async move { look.await.map_err(|code| Pool::failure(&named, code)) })
    }

    fn holders(&self, object: &str) -> LocalBoxFuture<'static, Result<Vec<String>, Failure>> {
        let (named, cluster) = (self.named.clone(), self.cluster.clone());
        let question = serde_json::json!({
            "prefix": "osd map",
            "pool": named.pool,
            "object": object,
            "nspace": named.place.namespace,
            "format": "json",
        });
        let asking = self.handle.offload(Duration::from_millis(1), move || {
            let answer = cluster.ask(&c_text(&question.to_string()))?;
            holders_of(&answer).ok_or(-libc::ENODATA)
        });
        Box::pin(async move { asking.await.map_err(|code| Pool::failure(&named, code)) })
    }

    fn has_copies(&self) -> bool {
        self.has_copies
    }

    fn capacity(&self) -> LocalBoxFuture<'static, Result<u64, Failure>> {
        let (handle, named, cluster) = (self.handle.clone(), self.named.clone(), self.cluster.clone());
        let known = self.capacity.clone();
        Box::pin(async move {
            if let Some((_, bytes)) = known.get().filter(|(at, _)| handle.now().since(*at) < CAPACITY_FOR) {
                return Ok(bytes);
            }
            let pool = named.pool.clone();
            let asking = handle.offload(Duration::from_millis(1), move || {
                let answer = cluster.ask(&c_text(DISK_FREE))?;
                capacity_of(&pool, &answer).ok_or(-libc::ENODATA)
            });
            let bytes = asking.await.map_err(|code| Pool::failure(&named, code))?;
            known.set(Some((handle.now(), bytes)));
            Ok(bytes)
        })
    }
}

/// Asks a monitor what pools are like.
const POOLS: &str = r#"{"prefix": "osd pool ls", "detail": "detail", "format": "json"}"#;

/// How a pool keeps objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Coding {
    Copies,
    Erasure { may_overwrite: bool },
}

/// That of a pool, as a monitor says.
fn coding_of(pool: &str, answer: &[u8]) -> Option<Coding> {
    /// `pg_pool_t::TYPE_ERASURE`.
    const ERASURE: u64 = 3;
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let found =
        answer.as_array()?.iter().find(|found| found.get("pool_name").and_then(|name| name.as_str()) == Some(pool))?;
    if found.get("type")?.as_u64()? != ERASURE {
        return Some(Coding::Copies);
    }
    let flags = found.get("flags_names")?.as_str()?;
    Some(Coding::Erasure { may_overwrite: flags.split(',').any(|flag| flag == "ec_overwrites") })
}

/// Asks a monitor how much there is.
const DISK_FREE: &str = r#"{"prefix": "df", "detail": "detail", "format": "json"}"#;

/// What a pool may have in all, as a monitor says: what is stored, and what still fits, within its quota.
fn capacity_of(pool: &str, answer: &[u8]) -> Option<u64> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let pools = answer.get("pools")?.as_array()?;
    let stats =
        pools.iter().find(|found| found.get("name").and_then(|name| name.as_str()) == Some(pool))?.get("stats")?;
    let number = |name| stats.get(name).and_then(serde_json::Value::as_u64);
    let fits = number("stored")? + number("max_avail")?;
    match number("quota_bytes") {
        Some(quota) if quota > 0 => Some(fits.min(quota)),
        _ => Some(fits),
    }
}

/// The OSDs that have an object, as a monitor says, first who answers for it.
fn holders_of(answer: &[u8]) -> Option<Vec<String>> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let first = answer.get("acting_primary")?.as_u64()?;
    let others = answer.get("acting")?.as_array()?.iter().filter_map(serde_json::Value::as_u64);
    let holders = std::iter::once(first).chain(others.filter(|osd| *osd != first));
    Some(holders.map(|osd| format!("osd.{osd}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_with_what_it_takes_to_reach_it() {
        let place = Place::parse("rados:disks").unwrap();
        assert_eq!((place.pool.as_str(), place.namespace.as_str(), place.user.as_str()), ("disks", "levee", "admin"));
        assert_eq!(place.shown(), "rados:disks/levee");
        let place = Place::parse("rados:disks/two?conf=/etc/ceph/b.conf&user=client.levee&data=thin").unwrap();
        assert_eq!(place.shown(), "rados:disks/two?data=thin");
        assert_eq!((place.namespace.as_str(), place.user.as_str()), ("two", "levee"));
        assert_eq!(place.conf, Some("/etc/ceph/b.conf".into()));
        for wrong in [
            "disks",
            "rados:",
            "rados:/a",
            "rados:a/",
            "rados:a/b/c",
            "rados:a?b",
            "rados:a?user=",
            "rados:a?x=y",
            "rados:a?data=a",
        ] {
            assert!(Place::parse(wrong).unwrap_err().contains("write rados:POOL"), "{wrong}");
        }
    }

    #[test]
    fn a_pool_has_copies_or_erasure_coding() {
        let answer = br#"[{"pool_name": "disks", "type": 1, "flags_names": "hashpspool"},
            {"pool_name": "thin", "type": 3, "flags_names": "hashpspool,ec_overwrites"},
            {"pool_name": "old", "type": 3, "flags_names": "hashpspool"}]"#;
        assert_eq!(coding_of("disks", answer), Some(Coding::Copies));
        assert_eq!(coding_of("thin", answer), Some(Coding::Erasure { may_overwrite: true }));
        assert_eq!(coding_of("old", answer), Some(Coding::Erasure { may_overwrite: false }));
        assert_eq!(coding_of("none", answer), None);
    }

    #[test]
    fn who_has_an_object_is_what_a_monitor_says() {
        let answer = br#"{"epoch": 9, "acting": [2, 0, 1], "acting_primary": 2, "up": [2, 0, 1]}"#;
        assert_eq!(holders_of(answer).unwrap(), ["osd.2", "osd.0", "osd.1"]);
        assert_eq!(holders_of(b"{}"), None);
    }

    #[test]
    fn a_pool_takes_what_is_in_it_and_what_still_fits_within_its_quota() {
        let answer = |quota: u64| {
            let stats = format!(r#"{{"stored": 100, "max_avail": 900, "quota_bytes": {quota}}}"#);
            format!(r#"{{"pools": [{{"name": "other", "stats": {{}}}}, {{"name": "disks", "stats": {stats}}}]}}"#)
        };
        assert_eq!(capacity_of("disks", answer(0).as_bytes()), Some(1000));
        assert_eq!(capacity_of("disks", answer(300).as_bytes()), Some(300));
        assert_eq!(capacity_of("none", answer(0).as_bytes()), None);
        assert_eq!(capacity_of("disks", b"nonsense"), None);
    }
}
