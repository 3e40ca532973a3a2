//! Traces as lines of text. Which kind it is the first line says:
//!
//! | kind | fields |
//! | --- | --- |
//! | cuts of the MSR Cambridge traces | milliseconds, device, offset and size in bytes, 1 for a read or 0 for a write; blanks between them |
//! | MSR Cambridge | time in units of 100 ns, host, disk, `Read` or `Write`, offset and size in bytes, response time; commas |
//! | Alibaba block traces | device, `R` or `W`, offset and length in bytes, time in microseconds; commas |
//! | Tencent CBS | time in seconds, offset and size in sectors of 512 bytes, 0 for a read or 1 for a write, volume; commas |

use base::Map;

use super::Request;

const SECTOR: u64 = 512;

/// What lines of a file are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Cut,
    Msr,
    Alibaba,
    Tencent,
}

/// Reads one line after the other.
#[derive(Debug)]
pub(super) struct Lines {
    kind: Kind,
    /// Numbers of disks that have names.
    disks: Map<String, u64>,
}

/// More disks with names than any trace has.
const DISKS_MAX: usize = 1 << 20;

impl Lines {
    /// For a file that begins with this line.
    pub fn like(line: &str) -> Lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let kind = match fields.as_slice() {
            [_] => Kind::Cut,
            [_, "R" | "W", _, _, _] => Kind::Alibaba,
            [_, _, _, _, _] => Kind::Tencent,
            _ => Kind::Msr,
        };
        Lines { kind, disks: Map::default() }
    }

    /// What the trace is called.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Cut => "lines: milliseconds device offset bytes 1-for-read-or-0-for-write",
            Kind::Msr => "MSR Cambridge: filetime,host,disk,Read|Write,offset,size,response",
            Kind::Alibaba => "Alibaba: device,R|W,offset,length,microseconds",
            Kind::Tencent => "Tencent CBS: seconds,sector,sectors,0-for-read-or-1-for-write,volume",
        }
    }

    /// The request of a line; its time is since whenever the trace counts from.
    pub fn request(&mut self, line: &str) -> Result<Request, String> {
        let fields: Vec<&str> = match self.kind {
            Kind::Cut => line.split_ascii_whitespace().collect(),
            _ => line.split(',').map(str::trim).collect(),
        };
        let parsed = match (self.kind, fields.as_slice()) {
            (Kind::Cut, &[ms, device, offset, bytes, is_read]) => cut(ms, device, offset, bytes, is_read),
            (Kind::Msr, &[time, host, disk, kind, offset, bytes, _]) => {
                self.disk(host, disk).and_then(|device| msr(time, device, kind, offset, bytes))
            }
            (Kind::Alibaba, &[device, kind, offset, bytes, us]) => alibaba(device, kind, offset, bytes, us),
            (Kind::Tencent, &[seconds, sector, sectors, is_write, volume]) => {
                tencent(seconds, sector, sectors, is_write, volume)
            }
            (kind, fields) => {
                let expected = if kind == Kind::Msr { 7 } else { 5 };
                Err(format!("it has {} fields, not {expected}", fields.len()))
            }
        };
        parsed.map_err(|what| format!("{what}; lines are as in {}", self.name()))
    }

    fn disk(&mut self, host: &str, disk: &str) -> Result<u64, String> {
        let next = self.disks.len() as u64;
        let name = format!("{host} {disk}");
        if self.disks.len() >= DISKS_MAX && !self.disks.contains_key(&name) {
            return Err(format!("more than {DISKS_MAX} disks"));
        }
        Ok(*self.disks.entry(name).or_insert(next))
    }
}

fn cut(ms: &str, device: &str, offset: &str, bytes: &str, is_read: &str) -> Result<Request, String> {
    let time = ms.parse::<f64>().ok().filter(|ms| (0.0..1e12).contains(ms)).ok_or(format!("{ms:?} is no time"))?;
    let is_write = one_of(is_read, "1", "0")?;
    Ok(Request {
        at_ns: (time * 1e6) as u64,
        device: number("device", device)?,
        offset: number("offset", offset)?,
        bytes: number("size", bytes)?,
        is_write,
    })
}

fn msr(time: &str, device: u64, kind: &str, offset: &str, bytes: &str) -> Result<Request, String> {
    let is_write = one_of(kind, "Read", "Write")?;
    let at_ns = times("time", time, 100)?;
    Ok(Request { at_ns, device, offset: number("offset", offset)?, bytes: number("size", bytes)?, is_write })
}

fn alibaba(device: &str, kind: &str, offset: &str, bytes: &str, us: &str) -> Result<Request, String> {
    let is_write = one_of(kind, "R", "W")?;
    let (device, at_ns) = (number("device", device)?, times("time", us, 1_000)?);
    Ok(Request { at_ns, device, offset: number("offset", offset)?, bytes: number("length", bytes)?, is_write })
}

fn tencent(seconds: &str, sector: &str, sectors: &str, is_write: &str, volume: &str) -> Result<Request, String> {
    let is_write = one_of(is_write, "0", "1")?;
    Ok(Request {
        at_ns: times("time", seconds, 1_000_000_000)?,
        device: number("volume", volume)?,
        offset: times("offset", sector, SECTOR)?,
        bytes: times("size", sectors, SECTOR)?,
        is_write,
    })
}

/// Whether it is a write.
fn one_of(field: &str, read: &str, write: &str) -> Result<bool, String> {
    match field {
        _ if field == write => Ok(true),
        _ if field == read => Ok(false),
        other => Err(format!("{other:?} is neither {read} nor {write}")),
    }
}

fn number(name: &str, field: &str) -> Result<u64, String> {
    field.parse::<u64>().map_err(|_| format!("{field:?} is no {name}"))
}

fn times(name: &str, field: &str, unit: u64) -> Result<u64, String> {
    number(name, field)?.checked_mul(unit).ok_or(format!("{field:?} is more than 64 bits can say of a {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Request>, String> {
        let mut lines = Lines::like(text.lines().next().unwrap());
        text.lines().map(|line| lines.request(line)).collect()
    }

    #[test]
    fn lines_are_requests() {
        let write = Request { at_ns: 500_000, device: 2, offset: 8192, bytes: 4096, is_write: true };
        let read = Request { at_ns: 1_250_000, device: 2, offset: 0, bytes: 512, is_write: false };
        for text in ["0.500 2 8192 4096 0\n  1.25   2 0 512 1  \r", "2,W,8192,4096,500\n2,R,0,512,1250"] {
            assert_eq!(parse(text).unwrap(), [write, read], "{text}");
        }
        let msr = "5000,hm,1,Write,8192,4096,413\n12500,hm,0,Read,0,512,1\n5000,hm,1,Write,8192,4096,413";
        let write = Request { device: 0, ..write };
        assert_eq!(parse(msr).unwrap(), [write, Request { device: 1, ..read }, write]);
        let tencent = "1538323200,16,8,1,1283\n1538323201,0,1,0,1283";
        let at = |seconds: u64| seconds * 1_000_000_000;
        let write = Request { at_ns: at(1_538_323_200), device: 1283, ..write };
        assert_eq!(parse(tencent).unwrap(), [write, Request { at_ns: at(1_538_323_201), device: 1283, ..read }]);
        // A time as the MSR traces have it.
        assert_eq!(parse("128166372003061629,hm,0,Read,383496192,32768,413").unwrap()[0].bytes, 32_768);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (good, wrong, what) in [
            ("0 0 0 4096 0", "0 0 0 4096", "4 fields"),
            ("0 0 0 4096 0", "x 0 0 4096 0", "\"x\" is no time"),
            ("0 0 0 4096 0", "-1 0 0 4096 0", "no time"),
            ("0 0 0 4096 0", "NaN 0 0 4096 0", "no time"),
            ("0 0 0 4096 0", "0 0 -5 4096 0", "\"-5\" is no offset"),
            ("0 0 0 4096 0", "0 0 0 4k 0", "\"4k\" is no size"),
            ("0 0 0 4096 0", "0 0 0 4096 2", "neither 1 nor 0"),
            ("0 0 0 4096 0", "5000,hm,1,Write,8192,4096,413", "1 fields"),
            ("5000,hm,1,Write,8192,4096,413", "5000,hm,1,Write,8192,4096", "6 fields, not 7"),
            ("5000,hm,1,Write,8192,4096,413", "5000,hm,1,Trim,8192,4096,1", "neither Read nor Write"),
            ("1,W,0,512,5", "1,D,0,512,5", "neither R nor W"),
            ("1,0,8,1,7", "1,0,8,3,7", "neither 0 nor 1"),
            ("1,0,8,1,7", "1,18446744073709551615,8,1,7", "64 bits"),
        ] {
            let error = parse(&format!("{good}\n{wrong}")).unwrap_err();
            assert!(error.contains(what) && error.contains("lines are as in"), "{wrong}: {error}");
        }
    }
}
