"""The work of a child: what strangers send, prepared for an engine."""

from collections.abc import Callable
from datetime import datetime

from car_base.host.event_log import named
from car_engine.child.frames import Answer, Defect, Invalid, Job, Opened, OpenTemplate, Render
from car_engine.prompt.rendering.environment import local_now
from car_engine.prompt.rendering.renderer import TemplateRenderer, template_fault


class Preparation:
    """Answers jobs; a MemoryError is the child's end. `now` returns the local time."""

    def __init__(self, now: Callable[[], datetime] = local_now) -> None:
        self._now = now
        self._renderers: dict[str, TemplateRenderer] = {}  # by the names of their templates

    def answer(self, job: Job) -> Answer:
        """Do one job."""
        try:
            match job:
                case OpenTemplate():
                    return self._open(job)
                case Render():
                    return self._renderers[job.template].render(job)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - reported with its place, as a fault of the request
            return Defect(named(error))

    def _open(self, job: OpenTemplate) -> Opened | Invalid:
        try:
            renderer = TemplateRenderer(job, self._now)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - Python's own compiler refuses what jinja accepts, and both recurse
            return Invalid(template_fault(error))
        renderer.try_out()
        self._renderers[job.name] = renderer
        return Opened(renderer.takes_tools, renderer.asking)
