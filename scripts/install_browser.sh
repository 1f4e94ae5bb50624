#!/usr/bin/env bash
# Install a Chromium for the tests of the plan page (tests/plan_page) unless there is one: Debian's package, as root.
set -euo pipefail
for name in ${TDU_CHROMIUM:-} chromium chromium-browser google-chrome google-chrome-stable chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "There is no Chromium, and only root can install Debian's: install one, set TDU_CHROMIUM=/path/to/chrome," >&2
    echo "or run .venv/bin/playwright install chromium." >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends chromium
