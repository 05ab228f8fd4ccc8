// Starts `planc lsp` for the plans of the window, with the settings declared in package.json.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  const settings = vscode.workspace.getConfiguration("planc");
  const server = { command: settings.get("command"), args: ["lsp"] };
  client = new LanguageClient("planc", "planc", server, {
    documentSelector: [{ language: "planc" }],
    initializationOptions: { target: settings.get("target"), set: settings.get("set") },
    synchronize: { fileEvents: vscode.workspace.createFileSystemWatcher("**/*.{plan,json}") },
  });
  return client.start();
}

function deactivate() {
  return client ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
