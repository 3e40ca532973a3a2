//! Who may ask what, where certificates say who somebody is.

use wire::frame::Services;

use crate::tls::Role;

/// What of `offered` is for one who is a `role`. What it was not offered it cannot ask for: the connection ends if it does.
pub(super) fn of(role: Role, offered: Services) -> Services {
    let none = Services::default();
    let granted = match role {
        Role::Store | Role::Client => none,
        // A server says that it lives, and has its files.
        Role::Server => Services { files: true, registry: true, ..none },
        // An agent has volumes, finds their segments, and hears from a registry whether there is a manager in charge.
        Role::Agent => Services { block: true, directory: true, places: true, registry: true, ..none },
        Role::Manager => Services {
            files: true,
            lease: true,
            registry: true,
            owner: true,
            user: true,
            segments: true,
            observer: true,
            ..none
        },
    };
    both(granted, offered)
}

/// Those that may ask for anything of `offered`.
pub(super) fn roles(offered: Services) -> Vec<Role> {
    Role::ALL.into_iter().filter(|role| of(*role, offered) != Services::default()).collect()
}

fn both(one: Services, other: Services) -> Services {
    Services {
        block: one.block && other.block,
        directory: one.directory && other.directory,
        owner: one.owner && other.owner,
        user: one.user && other.user,
        files: one.files && other.files,
        lease: one.lease && other.lease,
        places: one.places && other.places,
        registry: one.registry && other.registry,
        segments: one.segments && other.segments,
        observer: one.observer && other.observer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_gets_no_files_and_a_client_nothing() {
        let store = Services { files: true, lease: true, ..Services::default() };
        assert_eq!(roles(store), [Role::Manager, Role::Server]);
        assert_eq!(of(Role::Server, store), Services { files: true, ..Services::default() });
        let server = Services { block: true, owner: true, segments: true, observer: true, ..Services::default() };
        assert_eq!(roles(server), [Role::Manager, Role::Agent]);
        assert_eq!(of(Role::Agent, server), Services { block: true, ..Services::default() });
        assert_eq!(of(Role::Client, server), Services::default());
    }
}
