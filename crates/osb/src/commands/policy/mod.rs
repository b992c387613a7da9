//! `osb policy`: what a sandbox may reach.

use std::process::ExitCode;

use clap::Subcommand;
use protocol::egress::{NetworkPolicy, NetworkRule};

use super::{Context, Outcome, to_value};
use crate::client::network::PolicyStatus;
use crate::failure::Failure;
use crate::output::table;

mod edit;
mod target;
mod watch;

pub use target::{parse as parse_target, permitting};

/// How targets are written; part of several helps.
const TARGETS: &str = "A TARGET is a name (index.example.org), every name below one but not itself (*.index.example.org), an address or a network\n\
(93.184.215.14, 2001:db8::/32), with ports if not all are meant: index.example.org:443 or [2001:db8::1]:80,443.";

/// The commands about policies.
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// Show what a sandbox may reach
    #[command(
        after_help = "The first rule that matches decides, else the default. Rules for names judge names, rules for addresses\n\
judge addresses: a private address behind a name needs a rule of its own.\n\nExample:\n  osb policy show ID -o json"
    )]
    Show {
        /// The sandbox
        id: String,
    },
    /// Edit the policy as JSON, in the editor of VISUAL or EDITOR
    #[command(
        after_help = "What is saved is put in force at once; connections that it forbids are cut. Nothing changes when\n\
the text does not, or when the editor fails.\n\nExample:\n  EDITOR=nano osb policy edit ID"
    )]
    Edit {
        /// The sandbox
        id: String,
    },
    /// Let a sandbox reach something more
    #[command(after_help = format!("{TARGETS}\n\nOpens at once, before all other rules. Ports are added to those that are open already.\n\n\
Examples:\n  osb policy allow ID index.example.org:443 files.example.org:443\n  osb policy allow ID '*.example.com' 10.1.2.3:5432"))]
    Allow {
        /// The sandbox
        id: String,
        /// What to allow
        #[arg(required = true, value_name = "TARGET", value_parser = target::parse)]
        targets: Vec<NetworkRule>,
    },
    /// Forbid a sandbox to reach something; open connections to it are cut
    #[command(after_help = format!("{TARGETS}\n\nExample:\n  osb policy deny ID tracker.example.com"))]
    Deny {
        /// The sandbox
        id: String,
        /// What to deny
        #[arg(required = true, value_name = "TARGET", value_parser = target::parse)]
        targets: Vec<NetworkRule>,
    },
    /// Remove every rule for a target; the default then decides
    #[command(visible_alias = "rm", after_help = "Example:\n  osb policy remove ID index.example.org '*.example.com'")]
    Remove {
        /// The sandbox
        id: String,
        /// Targets as `osb policy show` lists them, without ports
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<String>,
    },
    /// Deny everything: no rules, and `deny` as the default
    Reset {
        /// The sandbox
        id: String,
    },
    /// Show what a sandbox tries to reach and what becomes of it, as it happens
    #[command(
        after_help = "Begins with what is kept of the past. What was refused comes with the command that would permit it, once.\n\
With -o json each event is one line of JSON. Its `cursor`, given as --cursor, goes on behind it.\n\n\
Examples:\n  osb policy watch ID --denied\n  osb policy watch ID -o json | jq -r 'select(.action == \"deny\") | .name'"
    )]
    Watch(watch::WatchArgs),
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Show { id } => {
            let status = ctx.client()?.policy(id).await?;
            ctx.printer.document(&to_value(&status), || shown(&status))?;
        }
        PolicyCommand::Edit { id } => edit::run(ctx, id).await?,
        PolicyCommand::Allow { id, targets } => put(ctx, id, "allow", targets).await?,
        PolicyCommand::Deny { id, targets } => put(ctx, id, "deny", targets).await?,
        PolicyCommand::Remove { id, targets } => {
            let client = ctx.client()?;
            let status = client.remove_rules(id, targets).await?;
            if let Some(reason) = &status.reason {
                return Err(Failure::new("NO_SUCH_RULE", format!("sandbox {id}: {reason}"))
                    .hint(format!("`osb policy show {id}` lists its rules")));
            }
            after(ctx, client.policy(id).await?)?;
        }
        PolicyCommand::Reset { id } => {
            let client = ctx.client()?;
            client.put_policy(id, &NetworkPolicy::default()).await?;
            after(ctx, client.policy(id).await?)?;
        }
        PolicyCommand::Watch(args) => return watch::run(ctx, args).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds rules with this action.
async fn put(ctx: &Context, id: &str, action: &str, targets: &[NetworkRule]) -> Result<(), Failure> {
    let client = ctx.client()?;
    let before = client.policy(id).await?.policy.unwrap_or_default();
    let new = targets.iter().map(|rule| NetworkRule { action: Some(action.to_owned()), ..rule.clone() });
    let rules = target::merged(&before, new);
    let is_open = before.default_action.as_deref() == Some("allow");
    if is_open && before.egress.is_empty() {
        // Perhaps it has no policy of its own. A patch would begin with one that denies, and close everything else.
        client.put_policy(id, &NetworkPolicy { egress: rules, ..before }).await?;
    } else {
        client.put_rules(id, &rules).await?;
    }
    after(ctx, client.policy(id).await?)
}

/// Shows the policy that a change led to.
fn after(ctx: &Context, status: PolicyStatus) -> Result<(), Failure> {
    ctx.printer.document(&to_value(&status), || shown(&status))
}

fn shown(status: &PolicyStatus) -> String {
    let policy = status.policy.clone().unwrap_or_default();
    let row = |(at, rule): (usize, &NetworkRule)| {
        let ports = rule.ports.iter().flatten().map(u32::to_string).collect::<Vec<_>>().join(",");
        vec![
            at.to_string(),
            rule.action.clone().unwrap_or_else(|| "deny".into()),
            rule.target.clone().unwrap_or_default(),
            if ports.is_empty() { "all".into() } else { ports },
        ]
    };
    let mut text = match policy.egress.is_empty() {
        true => String::new(),
        false => {
            table::rows(&["rule", "action", "target", "ports"], policy.egress.iter().enumerate().map(row).collect())
        }
    };
    let default = policy.default_action.as_deref().unwrap_or("deny");
    let rest = if policy.egress.is_empty() { "everything" } else { "everything else" };
    text.push_str(&format!("{rest}: {default}\n"));
    if let Some(reason) = &status.reason {
        text.push_str(&format!("({reason})\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_shown_with_its_rules_and_its_default() {
        let policy = NetworkPolicy {
            default_action: Some("deny".into()),
            egress: permitting(&[
                parse_target("pkg.test:443").expect("a target"),
                parse_target("10.0.0.0/8").expect("one"),
            ])
            .egress,
            ..NetworkPolicy::default()
        };
        let mut status = PolicyStatus {
            status: "ok".into(),
            mode: "enforcing".into(),
            enforcement_mode: None,
            reason: None,
            policy: Some(policy),
        };
        assert_eq!(
            shown(&status),
            "RULE  ACTION  TARGET      PORTS\n0     allow   pkg.test    443\n1     allow   10.0.0.0/8  all\neverything else: deny\n"
        );
        status.policy = None;
        status.reason = Some("because".into());
        assert_eq!(shown(&status), "everything: deny\n(because)\n");
    }
}
