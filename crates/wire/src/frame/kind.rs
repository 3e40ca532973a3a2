//! What a frame is: the codes of its types, which never change their meaning.

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $said:literal;)*) => {
        /// What is asked. Codes below 16 are for the server of segments, then for the directory of volumes, from 32 on
        /// for the owner of volumes, from 48 on for their user, from 64 on for a shared store of files, from 80 on for a
        /// lease store, from 84 on for the directory of segments, from 88 on for who registers engines, from 92 on for
        /// whoever tells of itself, from 96 on for an engine that owns segments.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind {
            $($(#[$doc])* $name = $code,)*
        }

        impl Kind {
            /// The bit that makes the code of a reply of the code of a kind.
            pub const REPLY: u8 = 0x80;
            /// All of them, by code.
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            /// Its name in messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$name => $said,)*
                }
            }

            /// The kind with this code.
            fn from_code(code: u8) -> Option<Kind> {
                match code {
                    $($code => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// [`crate::BlockService::attach`].
    Attach = 1, "attach";
    /// [`crate::BlockService::detach`].
    Detach = 2, "detach";
    /// [`crate::BlockService::read`].
    Read = 3, "read";
    /// [`crate::BlockService::write`].
    Write = 4, "write";
    /// [`crate::BlockService::discard`].
    Discard = 5, "discard";
    /// [`crate::BlockService::flush`].
    Flush = 6, "flush";
    /// [`crate::BlockService::allocation`].
    Allocation = 7, "allocation";
    /// [`crate::VolumeDirectory::resolve`].
    Resolve = 16, "resolve";
    /// [`crate::VolumeDirectory::describe`].
    Describe = 17, "describe";
    /// [`crate::VolumeDirectory::list`].
    List = 18, "list";
    /// [`crate::VolumeDirectory::attach`].
    Take = 19, "take";
    /// [`crate::VolumeDirectory::detach`].
    GiveBack = 20, "give back";
    /// [`crate::VolumeDirectory::take_logs`].
    TakeLogs = 21, "take logs";
    /// [`crate::VolumeOwner::drop_volume`].
    DropVolume = 32, "drop volume";
    /// [`crate::VolumeOwner::begin_scrub`].
    BeginScrub = 33, "begin scrub";
    /// [`crate::VolumeOwner::set_levels`].
    SetLevels = 34, "set levels";
    /// [`crate::VolumeOwner::set_provisioned`].
    SetProvisioned = 35, "set provisioned";
    /// [`crate::VolumeUser::release`].
    Release = 48, "release";
    /// [`crate::VolumeUser::users`].
    Users = 49, "users";
    /// [`crate::VolumeUser::learn_levels`].
    LearnLevels = 50, "learn levels";
    /// [`crate::FileService::join`].
    Join = 64, "join";
    /// [`crate::FileService::enter`].
    Enter = 65, "enter";
    /// [`crate::FileService::create`].
    CreateFile = 66, "create file";
    /// [`crate::FileService::append`].
    Append = 67, "append";
    /// [`crate::FileService::read`].
    ReadFile = 68, "read file";
    /// [`crate::FileService::repair_copy`].
    RepairCopy = 69, "repair copy";
    /// [`crate::FileService::check_headers`].
    CheckHeaders = 70, "check headers";
    /// [`crate::FileService::seal`].
    Seal = 71, "seal";
    /// [`crate::FileService::delete`].
    DeleteFile = 72, "delete file";
    /// [`crate::FileService::need_space`].
    NeedSpace = 73, "need space";
    /// [`crate::FileService::fence`].
    Fence = 74, "fence";
    /// [`crate::FileService::files_of`].
    FilesOf = 75, "files of";
    /// [`crate::FileService::find`].
    FindFile = 76, "find file";
    /// [`crate::FileService::lives`].
    Lives = 77, "lives";
    /// [`crate::FileService::files_of_segment`].
    FilesOfSegment = 78, "files of segment";
    /// [`crate::LeaseStore::grant`].
    Grant = 80, "grant a lease";
    /// [`crate::LeaseStore::keep_alive`].
    KeepAlive = 81, "keep a lease alive";
    /// [`crate::LeaseStore::compare_and_swap`].
    Swap = 82, "compare and swap";
    /// [`crate::LeaseStore::watch`].
    Watch = 83, "watch";
    /// [`crate::SegmentDirectory::locate`].
    Locate = 84, "locate a segment";
    /// [`crate::EngineRegistry::register`].
    Register = 88, "register";
    /// [`crate::EngineRegistry::missing`].
    Missing = 89, "which engines are missing";
    /// [`crate::Observer::observe`].
    Observe = 92, "tell how it stands";
    /// [`crate::Observer::explain`].
    Explain = 93, "tell why a volume waits";
    /// [`crate::SegmentOwner::assign`].
    Assign = 96, "assign segments";
    /// [`crate::SegmentOwner::refuse`].
    Refuse = 97, "refuse a segment";
    /// [`crate::SegmentOwner::release`].
    ReleaseSegment = 98, "release a segment";
    /// [`crate::SegmentOwner::held`].
    Held = 99, "is a segment held";
    /// [`crate::SegmentOwner::released`].
    Released = 100, "what was released";
    /// [`crate::SegmentOwner::forget_release`].
    ForgetRelease = 101, "forget a release";
    /// [`crate::SegmentOwner::recover`].
    Recover = 102, "recover";
    /// [`crate::SegmentOwner::begin_attachment`].
    BeginAttachment = 103, "begin an attachment";
    /// [`crate::SegmentOwner::drop_segment`].
    DropSegment = 104, "drop a segment";
}

/// The type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Type {
    Request(Kind),
    Reply(Kind),
    Hello,
    KeepAlive,
    Goodbye,
}

impl Type {
    pub(super) fn code(self) -> u8 {
        match self {
            Type::Request(kind) => kind as u8,
            Type::Reply(kind) => kind as u8 | Kind::REPLY,
            Type::Hello => 112,
            Type::KeepAlive => 113,
            Type::Goodbye => 114,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Type> {
        match code {
            112 => Some(Type::Hello),
            113 => Some(Type::KeepAlive),
            114 => Some(Type::Goodbye),
            _ if code & Kind::REPLY != 0 => Kind::from_code(code & !Kind::REPLY).map(Type::Reply),
            _ => Kind::from_code(code).map(Type::Request),
        }
    }

    /// Whether it has the same form in every version, and says version 0.
    pub(super) fn is_timeless(self) -> bool {
        matches!(self, Type::Hello | Type::Goodbye)
    }
}
