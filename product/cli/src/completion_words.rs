//! What completions offer besides verbs and options: the volumes that are attached, and the settings of `tune`.
//!
//! The scripts that `clap_complete` writes know the definition of the command line and nothing of this machine.
//! Names come from the state directory, where each attached volume has an entry.

use clap_complete::Shell;
use coulter_daemon::setting;

/// Verbs whose first word is the name of a volume.
const NAMING: &str = "detach|status|info|tune|scrub|replicate|restart|upgrade";

/// Lists the names of attached volumes.
const NAMES: &str =
    "ls \"${COULTER_STATE_DIRECTORY:-/run/coulter}\" 2>/dev/null | sed -n 's/\\.json$//p'";

/// What to append to the script of a shell for `coulter`.
pub(crate) fn addition(shell: Shell) -> String {
    let keys: Vec<String> = setting::keys().map(|key| format!("{key}=")).collect();
    let keys = keys.join(" ");
    match shell {
        Shell::Bash => format!(
            "
_coulter_names() {{ {NAMES}; }}
_coulter_words() {{
    _coulter \"$@\"
    local current=\"${{COMP_WORDS[COMP_CWORD]}}\"
    [[ $current == -* ]] && return
    case \"${{COMP_WORDS[1]}}\" in
        {NAMING}) [[ $COMP_CWORD == 2 ]] &&
            COMPREPLY=($(compgen -W \"$(_coulter_names)\" -- \"$current\")) ;;
    esac
    if [[ ${{COMP_WORDS[1]}} == tune && $COMP_CWORD -ge 3 ]]; then
        compopt -o nospace
        COMPREPLY=($(compgen -W \"{keys}\" -- \"$current\"))
    fi
}}
complete -F _coulter_words -o bashdefault -o default coulter
"
        ),
        Shell::Fish => format!(
            "
complete -c coulter -n '__fish_seen_subcommand_from {}' -f -a '({NAMES_FISH})'
complete -c coulter -n '__fish_seen_subcommand_from tune' -f -a '{keys}'
",
            NAMING.replace('|', " ")
        ),
        _ => format!(
            "
_coulter_words() {{
    case ${{words[2]}} in
        {NAMING}) (( CURRENT == 3 )) && compadd -- ${{(f)\"$({NAMES})\"}} && return ;;
    esac
    if [[ ${{words[2]}} == tune ]] && (( CURRENT > 3 )); then
        compadd -S '' -- {keys} && return
    fi
    _coulter \"$@\"
}}
compdef _coulter_words coulter
"
        ),
    }
}

/// The same in the words of fish.
const NAMES_FISH: &str = "ls /run/coulter 2>/dev/null | string replace -f -r \"\\.json\\$\" \"\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes_and_settings_are_offered() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = addition(shell);
            for word in ["/run/coulter", "detach", "reclaim=", "cleaning-rate="] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn bash_takes_the_script_and_completes_a_name() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::write(directory.path().join("日本.json"), "").expect("it is writable");
        let script = format!(
            "_coulter() {{ COMPREPLY=(); }}\n{}\nCOMP_WORDS=(coulter detach ''); COMP_CWORD=2; \
             _coulter_words; echo \"${{COMPREPLY[@]}}\"",
            addition(Shell::Bash)
        );
        let output = std::process::Command::new("bash")
            .args(["-c", &script])
            .env("COULTER_STATE_DIRECTORY", directory.path())
            .output()
            .expect("bash is there");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "日本", "{output:?}");
    }
}
