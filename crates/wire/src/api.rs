//! What the control API says, in JSON: the same types for whoever serves it and whoever asks.
//!
//! Field names end in their unit. A reader ignores fields that it does not know; the server refuses them.

use serde::{Deserialize, Serialize};

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Its id, never used again.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its stripe unit.
    pub data_sector_bytes: u64,
    /// How many segments it has, thin.
    pub segments: u32,
    /// `active` or `deleting`.
    pub state: String,
    /// How often it was attached.
    pub generation: u64,
    /// Clients that are connected now.
    pub clients: usize,
    /// Whose it is: a label.
    pub owner: String,
    /// When it was created, in milliseconds since 1970: a label.
    pub created_ms: u64,
    /// Where clients attach it.
    pub uris: Vec<String>,
}

/// `GET /v1/volumes`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeList {
    /// By name; those that are being deleted last.
    pub volumes: Vec<Volume>,
}

/// The body of `POST /v1/volumes`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size: bytes, or text such as `10G`.
    pub size: Size,
    /// Its stripe unit: bytes, or text such as `128K`; 128 KiB if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_sector: Option<Size>,
    /// Whose it is: a label.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Whether a volume of that name and size may exist already.
    #[serde(default)]
    pub allow_existing: bool,
}

/// A size, as a number of bytes or as people write it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes or text such as \"10G\"")]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Text such as `10G` or `1.5TiB`.
    Text(String),
}

impl Default for Size {
    fn default() -> Self {
        Size::Bytes(0)
    }
}

impl Size {
    /// The size in bytes.
    ///
    /// # Errors
    /// A sentence that says what a size looks like.
    pub fn bytes(&self) -> Result<u64, String> {
        match self {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => base::units::parse_size(text),
        }
    }
}

/// The answer to `DELETE /v1/volumes/{name}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deleted {
    /// The volume as it was.
    pub volume: Volume,
    /// Whether its data is dropped; otherwise the store goes on trying.
    pub is_dropped: bool,
}

/// `GET /v1/status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The version of Levee.
    pub version: String,
    /// The store's id.
    pub store: String,
    /// The number of this life of the store.
    pub incarnation: u64,
    /// How long it runs.
    pub uptime_seconds: f64,
    /// How many volumes there are.
    pub volumes: usize,
    /// Room.
    pub space: Space,
    /// Memory by the store's own account.
    pub memory: Memory,
    /// The directories that hold it.
    pub directories: Vec<Directory>,
    /// Where NBD clients connect: the listening addresses.
    pub nbd: Vec<String>,
    /// The file with the token that changes need.
    pub token_file: String,
}

/// Room, counted for one copy of new data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Space {
    /// What the store may use in all.
    pub capacity_bytes: u64,
    /// What its files have set aside.
    pub used_bytes: u64,
    /// What can still be set aside.
    pub free_bytes: u64,
}

/// Memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// What the store holds.
    pub used_bytes: u64,
    /// Its bound.
    pub limit_bytes: u64,
}

/// A directory of a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Directory {
    /// Its path.
    pub path: String,
    /// `healthy`, `failed`, `missing` or `resynchronizing`.
    pub state: String,
    /// Free bytes of its file system.
    pub free_bytes: u64,
    /// What still has to be copied to it.
    pub behind_bytes: u64,
}

/// The body of every answer that is an error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What went wrong.
    pub error: FailureDetail,
}

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailureDetail {
    /// A word that a program can act on, such as `not_found`.
    pub kind: String,
    /// What was wrong and what to do, for a person.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_text() {
        let read = |text: &str| serde_json::from_str::<CreateVolume>(text).unwrap().size.bytes();
        assert_eq!(read(r#"{"name": "a", "size": 4096}"#), Ok(4096));
        assert_eq!(read(r#"{"name": "a", "size": "10G"}"#), Ok(10 << 30));
        assert!(read(r#"{"name": "a", "size": "ten"}"#).is_err());
    }
}
