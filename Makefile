PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup test lint types demo docs figures clean

setup: $(READY)

# torch is installed first and pinned: a looser requirement would fetch a build with gigabytes of CUDA.
$(DEMO_READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch setuptools
	$(INSTALL) --no-build-isolation --editable ".[packed,lab]"
	touch $@

# timm asks for torchvision, which it can do without here, and of which there is no build for every torch.
$(READY): $(DEMO_READY)
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	$(INSTALL) --no-deps timm
	touch $@

test: setup lint types
	$(BIN)/pytest -n 2

# Dense, static, SET and DSR with 1 % of the weights, on MNIST: a table, and a page of these runs to look at.
demo: $(DEMO_READY)
	$(BIN)/regrow data mnist
	$(BIN)/regrow sweep experiments/demo.toml --jobs 2 --runs runs/demo
	@echo "Open this page in a browser:"
	@$(BIN)/regrow report runs/demo --out report

# The pages under docs/ as a site, in build/site. What builds them is installed here and not by `make setup`.
$(DOCS_READY): $(READY)
	$(INSTALL) --no-build-isolation --editable ".[docs]"
	touch $@

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open this page in a browser: build/site/index.html"

# The figures of docs/results.md, from the runs that are kept.
figures: $(DEMO_READY)
	$(BIN)/regrow report results/lenet_mnist results/lenet_early_stop results/wrn_cifar10 results/wrn_early_stop --out build/report
	mkdir -p docs/figures
	cp build/report/figures/lenet-300-100-mnist-accuracy-parameters.svg docs/figures/lenet_mnist_accuracy.svg
	cp build/report/figures/wrn-28-2-cifar10-accuracy-parameters.svg docs/figures/wrn_cifar10_accuracy.svg
	cp build/report/figures/wrn-28-2-cifar10-layers-dsr-residual-group.svg docs/figures/wrn_cifar10_groups.svg
	cp build/report/figures/lenet-300-100-mnist-stopped.svg docs/figures/lenet_mnist_stopped.svg
	cp build/report/figures/wrn-28-2-cifar10-stopped.svg docs/figures/wrn_cifar10_stopped.svg

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
