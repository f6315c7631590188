//! Tells Zed how to start the torchwise language server; everything else is in the server.
use zed_extension_api::{self as zed, serde_json, settings::LspSettings, LanguageServerId, Result, Worktree};

struct Torchwise;

impl zed::Extension for Torchwise {
    fn new() -> Self {
        Torchwise
    }

    /// `lsp.torchwise.binary` of the settings, else the `torchwise` on the path.
    fn language_server_command(&mut self, id: &LanguageServerId, worktree: &Worktree) -> Result<zed::Command> {
        let chosen = LspSettings::for_worktree(id.as_ref(), worktree).ok().and_then(|found| found.binary);
        let (path, arguments) = chosen.map_or((None, None), |binary| (binary.path, binary.arguments));
        let command = path
            .or_else(|| worktree.which("torchwise"))
            .ok_or("torchwise is not on the path: run `pip install torchwise`, or set lsp.torchwise.binary.path")?;
        Ok(zed::Command {
            command,
            args: arguments.unwrap_or_else(|| vec!["server".into()]),
            env: worktree.shell_env(),
        })
    }

    /// `lsp.torchwise.settings`, which the server asks for as the section `torchwise`.
    fn language_server_workspace_configuration(
        &mut self,
        id: &LanguageServerId,
        worktree: &Worktree,
    ) -> Result<Option<serde_json::Value>> {
        let settings = LspSettings::for_worktree(id.as_ref(), worktree)?.settings;
        Ok(settings.map(|table| serde_json::json!({ "torchwise": table })))
    }
}

zed::register_extension!(Torchwise);
