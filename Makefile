# Every target does its own set-up: a virtual environment in .venv, and on a fresh Debian the packages
# that it needs.  `make run` and `make test` are all that a newcomer wants.

VENV := .venv
BIN := $(VENV)/bin
VECTORS ?= $(wildcard tests/data/conformance/*.jsonl.gz)

# Where `make install` puts the single-host service; DESTDIR comes before all of it.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
LIBRARY := $(PREFIX)/lib/numalet
UNITS := $(PREFIX)/lib/systemd/system
HERE := $(if $(DESTDIR),:,)

.PHONY: run test vm-test real-test lint fmt bench conformance image kustomize install uninstall clean

run: $(VENV)/ready
	@$(BIN)/numalet run --simulate deploy/examples/machine-2s-16c.yaml \
	  --pods deploy/examples/pods --config deploy/examples/config.yaml

test: $(VENV)/ready
	$(BIN)/pytest

GUEST_OPTIONS := -o faulthandler_timeout=0
# Guests compile slowly, and forget what they compiled.  Where none can be had, that is a failure.
vm-test: $(VENV)/ready
	$(BIN)/python -m compileall -q agent tests/vm
	CI=true $(BIN)/pytest -m vm $(GUEST_OPTIONS) tests/vm

real-test: $(VENV)/ready
	hack/real-test

lint: $(VENV)/ready
	$(BIN)/ruff format --check agent hack tests
	$(BIN)/ruff check agent hack tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/deptry agent

fmt: $(VENV)/ready
	$(BIN)/ruff format agent hack tests
	$(BIN)/ruff check --fix agent hack tests

bench: $(VENV)/ready
	$(BIN)/python -m tests.bench

conformance: $(VENV)/ready
	$(BIN)/python -m tests.conformance $(VECTORS)

# IMAGE_OPTIONS=--debian makes the base image here, from Debian's packages.
image:
	hack/image $(IMAGE_OPTIONS)

# Render what is in deploy/ by the real kustomize and helm, and judge it.
kustomize: $(VENV)/deploy-tools
	$(BIN)/pytest tests/deploy

# A virtual environment of its own: no package of the system can break it, or be broken by it.
install:
	rm -rf build # modules of an earlier build would be installed, too
	hack/setup $(DESTDIR)$(LIBRARY) .
	sed -i '1s|^#!$(DESTDIR)|#!|' $(DESTDIR)$(LIBRARY)/bin/numalet
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(UNITS) $(DESTDIR)$(SYSCONFDIR)/numalet/pods
	ln -sfn $(LIBRARY)/bin/numalet $(DESTDIR)$(PREFIX)/bin/numalet
	sed 's|/usr/local|$(PREFIX)|; s|/etc/|$(SYSCONFDIR)/|g' systemd/numalet.service \
	  >$(DESTDIR)$(UNITS)/numalet.service
	cp -R systemd/numalet-kubepods-.slice.d $(DESTDIR)$(UNITS)
	[ -e $(DESTDIR)$(SYSCONFDIR)/numalet/config.yaml ] || \
	  install -m 0644 systemd/config.yaml $(DESTDIR)$(SYSCONFDIR)/numalet
	-$(HERE) systemctl daemon-reload
	@echo "put manifests into $(SYSCONFDIR)/numalet/pods, then: systemctl enable --now numalet"

# What runs goes on; `numalet release` says which values stay because of that.  Where it fails, nothing
# is taken away: it is the only program that can undo.
uninstall:
	-$(HERE) systemctl disable --now numalet.service
	$(HERE) [ ! -x $(PREFIX)/bin/numalet ] || \
	  $(PREFIX)/bin/numalet release --config $(SYSCONFDIR)/numalet/config.yaml
	rm -rf $(DESTDIR)$(LIBRARY) $(DESTDIR)$(UNITS)/numalet-kubepods-.slice.d
	rm -f $(DESTDIR)$(PREFIX)/bin/numalet $(DESTDIR)$(UNITS)/numalet.service
	-$(HERE) systemctl daemon-reload
	@echo "$(SYSCONFDIR)/numalet and /var/lib/numalet are kept"

clean:
	rm -rf $(VENV)

$(VENV)/deploy-tools: hack/deploy-tools $(VENV)/ready
	hack/deploy-tools $(VENV)
	touch $@

$(VENV)/ready: pyproject.toml hack/setup
	hack/setup $(VENV)
	touch $@
