"""Settings of the web processes and of everything that uses their tables.

All of them come from the environment (docs/architecture.md lists it); nothing here has a default
that would be unsafe in production, so a missing secret stops the process at once.
"""

from pathlib import Path
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

from webapp.logs import logging_config

env = environ.Env()
ROOT = Path(__file__).resolve().parent.parent
PALESTRA_HOME = Path(env.str("PALESTRA_HOME", default=str(ROOT / ".palestra"))).resolve()
PALESTRA_RUNS = Path(env.str("PALESTRA_RUNS", default=str(PALESTRA_HOME / "runs"))).resolve()
PALESTRA_MODELS = Path(env.str("PALESTRA_MODELS", default=str(PALESTRA_HOME / "models"))).resolve()
"""Model folders that a run may name; versions of teams' models lie in its ``catalog``."""
PALESTRA_DATASETS = Path(env.str("PALESTRA_DATASETS", default=str(PALESTRA_HOME / "datasets"))).resolve()
"""Versions of teams' datasets lie in its ``catalog``."""
PALESTRA_OPENENV: list[str] = [url.rstrip("/") for url in env.str("PALESTRA_OPENENV", default="").split()]
"""Addresses of OpenEnv servers that runs may play."""
PALESTRA_JUDGES: list[str] = [url.rstrip("/") for url in env.str("PALESTRA_JUDGES", default="").split()]
"""Addresses of language models that runs may name as judges."""
PALESTRA_SGLANG_URLS: list[str] = [url.rstrip("/") for url in env.str("PALESTRA_SGLANG_URLS", default="").split()]
"""SGLang servers that runs may name."""
PALESTRA_EXCHANGE: str | None = env.str("PALESTRA_EXCHANGE", default="") or None
"""The folder below which runs hand weights to SGLang servers that they name by URL."""
PALESTRA_IMPORTS = Path(env.str("PALESTRA_IMPORTS", default=str(PALESTRA_HOME / "imports"))).resolve()
PALESTRA_SERVING_PORT = env.int("PALESTRA_SERVING_PORT", default=8780)
PALESTRA_SERVING_URL = env.str("PALESTRA_SERVING_URL", default=f"http://127.0.0.1:{PALESTRA_SERVING_PORT}")
"""Where callers outside reach served models, as pages show it."""
"""The only folder of this server from which models and datasets are imported."""
PALESTRA_MODEL_BYTES_PER_TEAM = env.int("PALESTRA_MODEL_BYTES_PER_TEAM", default=500 * 2**30)
"""Versions and uploads of one team may take as much of the disk."""
PALESTRA_BASE_URL = env.str("PALESTRA_BASE_URL", default="http://127.0.0.1:8700").rstrip("/")
PALESTRA_INGEST_URL = env.str("PALESTRA_INGEST_URL", default=PALESTRA_BASE_URL).rstrip("/")
"""Where engines and workers reach the web process, if that is not where browsers do."""
PALESTRA_RAY_JOBS = env.str("PALESTRA_RAY_JOBS", default="")
PALESTRA_METRICS_TOKEN = env.str("PALESTRA_METRICS_TOKEN", default="")
"""Bearer token with which another host may read ``/metrics``; empty means loopback only."""

DEBUG = env.bool("PALESTRA_DEBUG", default=False)
SECRET_KEY = env.str("PALESTRA_SECRET_KEY", default="only for debugging" if DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("PALESTRA_SECRET_KEY is not set; any long random text will do, kept over restarts")

_base = urlsplit(PALESTRA_BASE_URL)
SECURE = _base.scheme == "https"
ALLOWED_HOSTS = [
    str(_base.hostname),
    "127.0.0.1",
    "localhost",
    "[::1]",
    *env.list("PALESTRA_ALLOWED_HOSTS", default=[]),
]
CSRF_TRUSTED_ORIGINS = [f"{_base.scheme}://{_base.netloc}"]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "channels",
    "django_htmx",
    "django_prometheus",
    "webapp.accounts",
    "webapp.catalog",
    "webapp.experiments",
    "webapp.runs",
    "webapp.trajectories",
    "webapp.security",
    "webapp.conversations",
    "webapp.serving",
    "webapp.editor",
    "webapp.environments",
    "webapp.library",
    "webapp.datasets",
    "webapp.task_sets",
    "webapp.packages",
    "webapp.egress",
    "webapp.audit",
]
OUR_APPS = ("accounts", "catalog", "experiments", "runs", "trajectories", "security", "conversations", "serving")
MIGRATION_MODULES = {app: f"migrations.{app}" for app in OUR_APPS}
MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "webapp.security_headers.SecurityHeaders",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "webapp.api.errors.ApiErrors",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "webapp.pages.pieces.Pieces",
    "webapp.pages.first_password.FirstPassword",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]
ROOT_URLCONF = "webapp.urls"
ASGI_APPLICATION = "webapp.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "webapp" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "webapp.pages.context.theme",
                "webapp.accounts.context.my_teams",
                "webapp.security.context.bell",
            ],
            "builtins": ["webapp.pages.display"],
        },
    }
]

# --- stores -------------------------------------------------------------------------------------
DATABASES = {"default": env.db_url("DATABASE_URL", default="postgres:///palestra")}
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
if env.bool("PALESTRA_DB_POOL", default=True):
    # Under ASGI every request has a thread of its own, so only a pool keeps connections open.
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": 16, "timeout": 5}
else:
    DATABASES["default"]["CONN_MAX_AGE"] = 60
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/0")
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        # A read time-out would cut every idle websocket (redis-py's own default is 5 s).
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None, "socket_connect_timeout": 2}]},
    }
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# --- people -------------------------------------------------------------------------------------
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator",
        "OPTIONS": {"user_attributes": ("email", "name")},
    },
]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
SESSION_ENGINE = "webapp.accounts.sessions"
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "palestra_session", "palestra_csrf"
SECURE_HSTS_SECONDS = 31_536_000 if SECURE else 0
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
if env.bool("PALESTRA_BEHIND_PROXY", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- time, language, files ----------------------------------------------------------------------
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
USE_I18N = False
STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "webapp" / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "webapp.vendored.VendoredFinder",
]
STATIC_ROOT = env.str("PALESTRA_STATIC_ROOT", default="") or None
"""Where ``collectstatic`` puts hashed, compressed files in production; without it their source folders serve."""
if STATIC_ROOT:
    STORAGES = {
        "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
        "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
    }
else:
    WHITENOISE_USE_FINDERS = True
    WHITENOISE_MAX_AGE = 0
WHITENOISE_AUTOREFRESH = DEBUG
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 2**20
"""Above docs/events.md's 4 MiB per batch, which the ingest checks itself."""

LOGGING_CONFIG = None
logging_config(env.str("PALESTRA_LOG_LEVEL", default="INFO"))
